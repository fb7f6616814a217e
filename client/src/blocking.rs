//! The same, for threads without a runtime: each call returns when it is done. Do not call these from async code.

use std::sync::Arc;

use forebay_transport::dial::{Dialer, RailDialer};
use forebay_transport::pool::{Ledger, Slab, Usage};
use forebay_transport::wire::describe::{DatasetList, Description, SampleDescription};

use crate::client::{self, block_on};
use crate::config::{ClientConfig, InUse, LoaderOptions};
use crate::error::Error;
use crate::loader::{Batch, LoaderStats};
use crate::url::ServerUrl;

/// See [`Client`](client::Client).
#[derive(Clone, Debug)]
pub struct Client(client::Client);

impl Client {
    /// See [`Client::connect`](client::Client::connect).
    pub fn connect(url: &ServerUrl, config: ClientConfig) -> Result<Client, Error> {
        block_on(client::Client::connect(url, config)).map(Client)
    }

    /// See [`Client::connect_beside`](client::Client::connect_beside).
    pub fn connect_beside(url: &ServerUrl, config: ClientConfig, rail: Arc<dyn RailDialer>) -> Result<Client, Error> {
        block_on(client::Client::connect_beside(url, config, rail)).map(Client)
    }

    /// See [`Client::with_dialer`](client::Client::with_dialer).
    pub fn with_dialer(dialer: Box<dyn Dialer>, memory: u64) -> Result<Client, Error> {
        block_on(client::Client::with_dialer(dialer, memory)).map(Client)
    }

    /// See [`Client::with_pool`](client::Client::with_pool).
    pub fn with_pool(dialer: Box<dyn Dialer>, pool: Slab, ledger: Ledger) -> Result<Client, Error> {
        block_on(client::Client::with_pool(dialer, pool, ledger)).map(Client)
    }

    /// See [`Client::datasets`](client::Client::datasets).
    pub fn datasets(&self) -> Result<DatasetList, Error> {
        block_on(self.0.datasets())
    }

    /// See [`Client::dataset`](client::Client::dataset).
    pub fn dataset(&self, name: &str) -> Result<Dataset, Error> {
        block_on(self.0.dataset(name)).map(Dataset)
    }

    /// See [`Client::close`](client::Client::close).
    pub fn close(self) {
        block_on(self.0.close());
    }

    /// See [`Client::pool`](client::Client::pool).
    pub fn pool(&self) -> Usage {
        self.0.pool()
    }

    /// See [`Client::unverified`](client::Client::unverified).
    pub fn unverified(&self) -> u64 {
        self.0.unverified()
    }

    /// The client behind it, for async code.
    pub fn inner(&self) -> &client::Client {
        &self.0
    }
}

/// See [`Dataset`](client::Dataset).
#[derive(Clone, Debug)]
pub struct Dataset(client::Dataset);

impl Dataset {
    /// The dataset behind it, for async code.
    pub fn inner(&self) -> &client::Dataset {
        &self.0
    }

    pub fn description(&self) -> &Description {
        self.0.description()
    }

    /// See [`Client::unverified`](client::Client::unverified).
    pub fn unverified(&self) -> u64 {
        self.0.client().unverified()
    }

    /// See [`Dataset::sample`](client::Dataset::sample).
    pub fn sample(&self, ordinal: u64) -> Result<SampleDescription, Error> {
        block_on(self.0.sample(ordinal))
    }

    /// See [`Dataset::ordinal`](client::Dataset::ordinal).
    pub fn ordinal(&self, key: &str) -> Result<u64, Error> {
        block_on(self.0.ordinal(key))
    }

    /// See [`Dataset::find`](client::Dataset::find).
    pub fn find(&self, key: &str) -> Result<Vec<SampleDescription>, Error> {
        block_on(self.0.find(key))
    }

    /// See [`Dataset::fetch`](client::Dataset::fetch).
    pub fn fetch(&self, ordinals: &[u64], fields: Option<&[&str]>) -> Result<Batch, Error> {
        block_on(self.0.fetch(ordinals, fields))
    }

    /// See [`Dataset::in_use`](client::Dataset::in_use).
    pub fn in_use(&self) -> Result<InUse, Error> {
        block_on(self.0.in_use())
    }

    /// See [`Dataset::settled`](client::Dataset::settled).
    pub fn settled(&self) -> Result<InUse, Error> {
        block_on(self.0.settled())
    }

    /// See [`Dataset::loader`](client::Dataset::loader).
    pub fn loader(&self, options: LoaderOptions) -> Result<Loader, Error> {
        block_on(self.0.loader(options)).map(Loader)
    }
}

/// See [`Loader`](client::Loader). An iterator of batches.
#[derive(Debug)]
pub struct Loader(client::Loader);

impl Loader {
    /// What the loader did so far.
    pub fn stats(&self) -> LoaderStats {
        block_on(self.0.stats())
    }
}

impl Iterator for Loader {
    type Item = Result<Batch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.0.next())
    }
}
