//! The JSON documents of the control routes. Unknown members are ignored, so that a later server can say more.

use serde::{Deserialize, Serialize};

/// Answer to `GET /v1/datasets`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DatasetList {
    pub wire: WireRange,
    pub datasets: Vec<DatasetSummary>,
}

/// The wire versions a server speaks, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireRange {
    pub min: u16,
    pub max: u16,
}

impl WireRange {
    pub fn ours() -> WireRange {
        WireRange { min: super::WIRE_MIN, max: super::WIRE_MAX }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DatasetState {
    /// Being indexed: see `progress`.
    Indexing,
    Ready,
    /// Cannot be served: see `error`.
    Damaged,
    /// Its shards changed on disk after they were indexed: see `error`.
    Changed,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DatasetSummary {
    pub name: String,
    pub state: DatasetState,
    /// `b3-…`; absent until the dataset is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Sum of all fields of all samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Why it is not ready, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Share of the shards' bytes indexed, 0 to 1, while indexing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
}

/// Answer to `GET /v1/datasets/{d}`, of a dataset that is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    pub wire: WireRange,
    pub name: String,
    /// `b3-…`.
    pub version: String,
    pub samples: u64,
    /// Sum of all fields of all samples.
    pub bytes: u64,
    /// The most bytes that the fields of one sample have together.
    pub largest_sample: u64,
    /// In order: a field's place in this list is its id in a fetch.
    pub fields: Vec<FieldDescription>,
    pub shards: Vec<ShardDescription>,
    /// The most bytes the server sends in answer to one group; a larger sample can still be fetched alone.
    pub max_group_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FieldDescription {
    pub name: String,
    /// How many samples have it.
    pub count: u64,
    pub min: u64,
    pub max: u64,
    /// Sum over all samples.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardDescription {
    pub name: String,
    pub bytes: u64,
    pub samples: u64,
    /// BLAKE3 of the shard's bytes, in hexadecimal.
    pub digest: String,
}

/// Answer to `GET /v1/datasets/{d}/samples/{i}` and one element of the answer to `GET /v1/datasets/{d}/keys/{key}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleDescription {
    pub ordinal: u64,
    pub key: String,
    pub shard: String,
    pub fields: Vec<SampleField>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleField {
    pub name: String,
    /// Byte offset in the shard.
    pub offset: u64,
    pub bytes: u64,
    /// CRC-32C in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32c: Option<String>,
}

/// Answer to `POST /v1/datasets/{d}/rdma`: a way in, and where it leads to.
#[derive(Clone, Serialize, Deserialize)]
pub struct RdmaOffer {
    /// The versions of the frames that the server speaks, which are counted on their own.
    pub wire: WireRange,
    /// 64 hexadecimal digits, good for one connection.
    pub ticket: String,
    /// How long it is good for, in milliseconds from now.
    pub expires_ms: u32,
    /// Never empty, the best one first.
    pub endpoints: Vec<RdmaEndpoint>,
}

impl std::fmt::Debug for RdmaOffer {
    /// Without the ticket.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaOffer").field("wire", &self.wire).field("endpoints", &self.endpoints).finish()
    }
}

/// Where a server listens for RDMA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaEndpoint {
    /// An IP address that the connection manager resolves.
    pub address: std::net::IpAddr,
    pub port: u16,
    /// Speed of the link in Mb/s; 0 where it is not known.
    pub mbps: u64,
    /// The most payload of one packet, in bytes.
    pub mtu: u32,
    /// What kind of address the device uses: `roce-v2`, `roce-v1`, `infiniband`.
    pub gid: String,
    /// The same for all endpoints that reach each other: subnet prefix or network.
    pub fabric: String,
}

/// RFC 9457 problem document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// A stable name: `urn:forebay:problem:dataset-changed`, …
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
