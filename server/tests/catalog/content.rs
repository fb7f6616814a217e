//! What a dataset says is what its shards hold.

use std::fs;

use forebay_server::catalog::CatalogError;

use super::support::{Place, dump, samples, tar};

#[test]
fn a_dataset_is_what_its_shards_hold() {
    let place = Place::new();
    place.put("b.tar", &tar(&[("y/2.JPG", "two"), ("y/2.cls", ""), ("readme", "no field"), ("x.a.b", "deep")]));
    place.put("a.tar", &tar(&[("k.json", "{}"), ("__meta__", "skipped"), ("l.cls", "1"), ("l.jpg", "pixels")]));
    let dataset = place.build().expect("intact shards").dataset;
    let field = |name: &str, data: &str| (name.to_owned(), data.as_bytes().to_vec());
    let expected = vec![
        (b"k".to_vec(), "a.tar".to_owned(), vec![field("json", "{}")]),
        (b"l".to_vec(), "a.tar".to_owned(), vec![field("cls", "1"), field("jpg", "pixels")]),
        (b"y/2".to_vec(), "b.tar".to_owned(), vec![field("cls", ""), field("jpg", "two")]),
        (b"x".to_vec(), "b.tar".to_owned(), vec![field("a.b", "deep")]),
    ];
    assert_eq!(dump(&dataset), expected);

    let description = dataset.describe(1 << 20);
    assert_eq!((description.samples, description.bytes, description.largest_sample), (4, 16, 7));
    assert_eq!(description.max_group_bytes, 1 << 20);
    let fields: Vec<_> = description.fields.iter().map(|f| (f.name.as_str(), f.count, f.min, f.max, f.bytes)).collect();
    assert_eq!(fields, [("a.b", 1, 4, 4, 4), ("cls", 2, 0, 1, 1), ("jpg", 2, 3, 6, 9), ("json", 1, 2, 2, 2)]);
    assert_eq!(dataset.field_id("cls"), Some(1));
    assert_eq!(dataset.field_id("nothing"), None);
    for shard in &description.shards {
        let bytes = fs::read(place.data().join(&shard.name)).expect("the shard is there");
        assert_eq!(shard.digest, blake3::hash(&bytes).to_hex().to_string());
        assert_eq!((shard.bytes, shard.samples), (bytes.len() as u64, 2));
    }
    let sample = dataset.describe_sample(1).expect("there");
    assert_eq!((sample.key.as_str(), sample.shard.as_str(), sample.ordinal), ("l", "a.tar", 1));
    assert_eq!(sample.fields[1].crc32c, Some(format!("{:08x}", crc32c::crc32c(b"pixels"))));

    // Errors say what there is.
    let error = dataset.extent(4, 0).expect_err("there are four");
    assert_eq!(error, CatalogError::NoSuchSample { dataset: "test".into(), ordinal: 4, samples: 4 });
    let mut extents = vec![None];
    let error = dataset.extents(0, &[3, 4], &mut extents).expect_err("there are four");
    assert_eq!(error, CatalogError::NoSuchField { dataset: "test".into(), field: 4, fields: 4 });
    assert_eq!(extents, [None], "nothing was appended");
    assert_eq!(dataset.find(b"nobody").expect("an intact index"), [0u64; 0]);
}

#[test]
fn the_version_goes_with_the_bytes_and_names_only() {
    let (one, other) = (Place::new(), Place::new());
    for place in [&one, &other] {
        place.put("a.tar", &samples("a", 5, 100));
        place.put("b.tar", &samples("b", 5, 100));
    }
    let version = |place: &Place| place.build().expect("intact shards").dataset.version();
    let before = version(&one);
    assert_eq!(before, version(&other), "a copy elsewhere is the same dataset");
    fs::rename(one.data().join("b.tar"), one.data().join("c.tar")).expect("renamed");
    assert_ne!(version(&one), before, "another name");
    // One bit of padding, which no sample holds.
    let mut bytes = samples("b", 5, 100);
    *bytes.last_mut().expect("not empty") = 1;
    other.put("b.tar", &bytes);
    assert_ne!(version(&other), before, "another byte");
}

#[test]
fn shards_and_datasets_may_be_empty() {
    let place = Place::new();
    place.put("a.tar", &tar::<&str, &str>(&[]));
    place.put("b.tar", &tar(&[("no-field", "x")]));
    let dataset = place.build().expect("intact shards").dataset;
    assert_eq!((dataset.samples(), dataset.bytes(), dataset.largest_sample()), (0, 0, 0));
    assert!(dataset.sample(0).is_err());
    assert_eq!(dataset.find(b"a").expect("an intact index"), [0u64; 0]);
    assert_eq!(dataset.describe(0).shards.len(), 2);
    // Among others, too: ordinals step over them.
    place.put("c.tar", &samples("c", 3, 10));
    place.put("d.tar", &tar::<&str, &str>(&[]));
    place.put("e.tar", &samples("e", 2, 10));
    place.put("f.tar", &tar::<&str, &str>(&[]));
    let dataset = place.build().expect("intact shards").dataset;
    let shards: Vec<_> = (0..5).map(|ordinal| dataset.sample(ordinal).expect("there").shard).collect();
    assert_eq!(shards, [2, 2, 2, 4, 4]);
    dump(&dataset);
}

#[test]
fn keys_may_repeat() {
    let place = Place::new();
    place.put("a.tar", &tar(&[("k.a", "1"), ("l.a", "2"), ("k.a", "3")]));
    place.put("b.tar", &tar(&[("k.a", "4")]));
    let dataset = place.build().expect("intact shards").dataset;
    assert_eq!(dataset.find(b"k").expect("an intact index"), [0, 2, 3]);
    assert_eq!(dataset.find(b"l").expect("an intact index"), [1]);
}

#[test]
fn a_hundred_thousand_tiny_samples() {
    let place = Place::new();
    for shard in 0..4 {
        let members: Vec<_> = (0..25_000).map(|i| (format!("{shard}/{i:05}.c"), (i as u32).to_le_bytes())).collect();
        place.put(&format!("{shard}.tar"), &tar(&members));
    }
    let dataset = place.build().expect("intact shards").dataset;
    assert_eq!((dataset.samples(), dataset.largest_sample()), (100_000, 4));
    for ordinal in (0..100_000).step_by(37) {
        let key = format!("{}/{:05}", ordinal / 25_000, ordinal % 25_000);
        assert_eq!(dataset.sample(ordinal).expect("there").key, key.as_bytes());
        assert_eq!(dataset.find(key.as_bytes()).expect("an intact index"), [ordinal]);
        let crc = crc32c::crc32c(&((ordinal % 25_000) as u32).to_le_bytes());
        assert_eq!(dataset.extent(ordinal, 0).expect("there").expect("there").crc, Some(crc));
    }
}

/// A name with several dots makes a field of each file: that ends in an error that says so, not in a useless dataset.
#[test]
fn too_many_field_names_are_refused() {
    let place = Place::new();
    for shard in 0..2 {
        let members: Vec<_> = (0..40_000).map(|i| (format!("img.{}.jpg", shard * 40_000 + i), "")).collect();
        // Keys differ, so that each is a sample of its own.
        let members: Vec<_> =
            members.iter().enumerate().map(|(i, (name, data))| (format!("{i}{name}"), data)).collect();
        place.put(&format!("{shard}.tar"), &tar(&members));
    }
    let error = place.build().expect_err("80,000 names");
    assert!(error.to_string().contains("more than 65535 different field names"), "{error}");
}
