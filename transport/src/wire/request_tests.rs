use proptest::prelude::*;

use super::*;

fn encoded(fields: &[FieldId], ordinals: &[u64]) -> Result<Bytes, WireError> {
    let mut out = BytesMut::new();
    let request = FetchRequest {
        version: Version([7; 32]),
        capacity: 64 << 20,
        remaining: Duration::from_micros(29_999_001),
        fields,
        ordinals,
    };
    request.encode(&mut out)?;
    Ok(out.freeze())
}

fn decoded(body: &Bytes) -> (Vec<FieldId>, Vec<u64>) {
    let body = FetchBody::decode(body.clone()).unwrap();
    assert_eq!(body.version, Version([7; 32]));
    assert_eq!(body.capacity, 64 << 20);
    // Rounded up: a client never waits for less than it said.
    assert_eq!(body.remaining, Duration::from_secs(30));
    let ordinals: Vec<u64> = body.ordinals.iter().collect();
    assert_eq!(ordinals.len(), body.ordinals.len());
    (body.fields, ordinals)
}

#[test]
fn a_run_is_a_few_bytes_and_a_shuffled_ordinal_four() {
    let run: Vec<u64> = (0..MAX_ORDINALS as u64).collect();
    let body = encoded(&[0], &run).unwrap();
    assert_eq!(body.len(), HEAD + 2 + 4);
    assert_eq!(decoded(&body), (vec![0], run));

    // ImageNet's size, in no order: at most four bytes each.
    let shuffled: Vec<u64> = (0..512u64).map(|i| i * 2_654_435_761 % 1_281_167).collect();
    let body = encoded(&[0, 1], &shuffled).unwrap();
    assert!(body.len() <= HEAD + 4 + 4 * 512, "{} bytes", body.len());
    assert_eq!(decoded(&body), (vec![0, 1], shuffled));
}

#[test]
fn repeated_and_extreme_ordinals_travel() {
    for ordinals in [&[5, 5, 5, 4, 3][..], &[MAX_ORDINAL - 1, 0, MAX_ORDINAL - 2, MAX_ORDINAL - 1], &[0]] {
        assert_eq!(decoded(&encoded(&[9], ordinals).unwrap()).1, ordinals);
    }
}

#[test]
fn what_is_beyond_the_limits_is_not_sent() {
    let refused = |fields: &[FieldId], ordinals: &[u64]| {
        let error = encoded(fields, ordinals).unwrap_err();
        assert!(matches!(error, WireError::Range { .. }), "{error}");
    };
    refused(&[], &[1]);
    refused(&[1], &[]);
    refused(&[0], &[MAX_ORDINAL]);
    refused(&[0], &vec![0; MAX_ORDINALS + 1]);
    refused(&[0; MAX_FIELDS + 1], &[0]);
    refused(&[0; 17], &vec![0; MAX_ORDINALS]);
    assert!(encoded(&[0; 16], &vec![0; MAX_ORDINALS]).is_ok());
}

#[test]
fn a_body_of_no_use_says_why() {
    let good = encoded(&[0, 3], &[1, 2, 3, 90]).unwrap();
    let error = |body: Vec<u8>| FetchBody::decode(body.into()).unwrap_err();
    let patched = |at: usize, with: &[u8]| {
        let mut body = good.to_vec();
        body[at..at + with.len()].copy_from_slice(with);
        error(body)
    };
    let with = |tail: &[u8]| FetchBody::decode([&good[..], tail].concat().into());
    assert_eq!(error(b"GET / HTTP/1.1\r\n".to_vec()), WireError::Magic);
    assert_eq!(error(good[..40].to_vec()), WireError::Truncated("head"));
    assert_eq!(error(good[..HEAD + 3].to_vec()), WireError::Truncated("fields"));
    assert_eq!(error(good[..good.len() - 1].to_vec()), WireError::Truncated("ordinals"));
    assert_eq!(patched(4, &[2, 0]), WireError::Version(2));
    assert_eq!(patched(6, &[0, 1]), WireError::Flags(0x100));
    assert_eq!(patched(54, &[1, 0]), WireError::Reserved);
    assert!(matches!(patched(52, &[0xff, 0xff]), WireError::Range { what: "the count of fields", .. }));
    assert!(matches!(patched(56, &[0xff; 4]), WireError::Range { what: "the count of ordinals", .. }));
    // A run longer than the count of ordinals, as long as an integer can be.
    assert!(matches!(
        patched(HEAD + 5, &[0xff]),
        WireError::Range { .. } | WireError::Varint | WireError::Truncated(_)
    ));
    assert_eq!(with(&[1, 0x80, 2, 0, 8, 9]).map(|body| body.ordinals.len()), Ok(4));
    assert_eq!(with(&[1, 0, 0, 0]), Err(WireError::Extension(1)));
    assert_eq!(with(&[1, 0x80, 2, 0, 8]), Err(WireError::Truncated("extension")));
    assert_eq!(with(&[1]), Err(WireError::Truncated("extension")));
}

/// An ordinal below 0, and a run that passes the largest.
#[test]
fn ordinals_cannot_leave_their_range() {
    let body = |tokens: &[u64], count: u32| {
        let mut body = BytesMut::from(&encoded(&[0], &[0]).unwrap()[..HEAD + 2]);
        body[56..60].copy_from_slice(&count.to_le_bytes());
        tokens.iter().for_each(|&token| varint::put(&mut body, token));
        FetchBody::decode(body.freeze()).map(|body| body.ordinals.iter().collect::<Vec<_>>())
    };
    let step = |delta: i64| varint::zigzag(delta) << 1;
    assert!(matches!(body(&[step(-1)], 1), Err(WireError::Range { what: "an ordinal", .. })));
    assert!(matches!(body(&[u64::MAX - 1], 1), Err(WireError::Range { .. })));
    assert!(matches!(body(&[u64::MAX, 0], 2), Err(WireError::Range { .. })));
    let last = MAX_ORDINAL as i64 - 1;
    assert_eq!(body(&[step(last)], 1), Ok(vec![MAX_ORDINAL - 1]));
    assert!(matches!(body(&[step(last) | 1, 0], 2), Err(WireError::Range { what: "an ordinal", .. })));
    assert!(matches!(body(&[step(0) | 1, u64::MAX], 2), Err(WireError::Range { what: "a run", .. })));
    assert_eq!(body(&[step(last), step(-(last + 1))], 2), Ok(vec![MAX_ORDINAL - 1, 0]));
}

fn any_ordinals() -> impl Strategy<Value = Vec<u64>> {
    let piece = prop_oneof![
        (0u64..2_000_000).prop_map(|ordinal| vec![ordinal]),
        (0..MAX_ORDINAL).prop_map(|ordinal| vec![ordinal]),
        (0..MAX_ORDINAL - 50, 1u64..50).prop_map(|(first, count)| (first..first + count).collect()),
    ];
    prop::collection::vec(piece, 1..20).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn requests_come_back(fields in prop::collection::vec(any::<u16>(), 1..9), ordinals in any_ordinals()) {
        let body = encoded(&fields, &ordinals).unwrap();
        prop_assert_eq!(decoded(&body), (fields, ordinals));
        for cut in 0..body.len() {
            prop_assert!(FetchBody::decode(body.slice(..cut)).is_err());
        }
    }

    /// Whatever arrives: no panic, and what is accepted keeps the limits and the count.
    #[test]
    fn hostile_bytes_are_refused_or_in_range(
        ordinals in any_ordinals(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        tail in prop::collection::vec(any::<u8>(), 0..12),
    ) {
        let mut body = [&encoded(&[1, 2], &ordinals).unwrap()[..], &tail].concat();
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Ok(body) = FetchBody::decode(body.into()) {
            prop_assert_eq!(body.ordinals.iter().count(), body.ordinals.len());
            prop_assert!(body.ordinals.iter().all(|ordinal| ordinal < MAX_ORDINAL));
            prop_assert!(body.ordinals.len() * body.fields.len() <= MAX_ENTRIES);
        }
    }
}
