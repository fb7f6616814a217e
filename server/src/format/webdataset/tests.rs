use super::*;

fn group(members: &[(&[u8], u64)]) -> Result<Vec<(String, Vec<String>)>, FormatError> {
    let mut grouper = Grouper::new();
    for (at, (name, size)) in (0..).zip(members) {
        grouper.push(Member { name, header: at * 1024, offset: at * 1024 + 512, size: *size, crc: 0 })?;
    }
    let shard = grouper.finish();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let fields = |rows: &[FieldRow]| rows.iter().map(|row| shard.names[usize::from(row.name)].clone()).collect();
    Ok(shard.iter().map(|(key, rows)| (text(key), fields(rows))).collect())
}

fn groups(names: &[&str]) -> Vec<(String, Vec<String>)> {
    group(&names.iter().map(|name| (name.as_bytes(), 1)).collect::<Vec<_>>()).expect("intact")
}

fn problem(names: &[&[u8]]) -> (u64, Problem) {
    let error = group(&names.iter().map(|name| (*name, 1)).collect::<Vec<_>>()).expect_err("refused");
    (error.offset, error.problem)
}

fn sample(key: &str, fields: &[&str]) -> (String, Vec<String>) {
    (key.to_owned(), fields.iter().map(|field| field.to_string()).collect())
}

#[test]
fn names_split_at_the_first_dot_of_the_last_component() {
    let cases: &[(&str, Option<(&str, &str)>)] = &[
        ("a.jpg", Some(("a", "jpg"))),
        ("a.b.c", Some(("a", "b.c"))),
        ("d.e/a.b", Some(("d.e/a", "b"))),
        ("../a.b", Some(("../a", "b"))),
        ("a.", Some(("a", ""))),
        ("a..b", Some(("a", ".b"))),
        ("a", None),
        ("", None),
        (".a", None),
        ("d.e/a", None),
        ("d.e/", None),
        // A hidden file in a folder: the expression reaches back over the slash.
        ("d/.a", Some(("d/", "a"))),
        ("/.a", Some(("/", "a"))),
        ("d.e/f/.a", Some(("d.e/f/", "a"))),
        ("d.e/.a", None),
        ("d.e//.a", Some(("d.e//", "a"))),
        ("./.a", None),
        // A dot in it does not match a line's end, but the rest of it does.
        ("n\nl.a", Some(("n\nl", "a"))),
        ("n\nl/k.a", Some(("n\nl/k", "a"))),
        ("n\nl.d/k.a", None),
        ("l.d/n\nk.a", Some(("l.d/n\nk", "a"))),
        ("a.b\n", Some(("a", "b\n"))),
    ];
    for (name, expected) in cases {
        let found = split(name.as_bytes());
        assert_eq!(found, expected.map(|(key, field)| (key.as_bytes(), field.as_bytes())), "{name:?}");
    }
}

#[test]
fn metadata_is_passed_over() {
    for name in ["__", "___", "____", "__a__", "__a.b__", "__m__/a.b", "____/a", "__a.b__\n"] {
        assert!(is_meta(name.as_bytes()), "{name:?}");
    }
    for name in
        ["", "_", "__a", "a__", "__a.b", "__/a.b", "___/a.b", "d/__m__", "__\n", "___\n", "__m__x/a.b", "__a/b__"]
    {
        assert!(!is_meta(name.as_bytes()), "{name:?}");
    }
}

#[test]
fn consecutive_members_with_one_key_are_a_sample() {
    let expected = [sample("a", &["x", "y"]), sample("b", &["x"]), sample("a", &["x"])];
    assert_eq!(groups(&["a.x", "a.y", "b.x", "a.x"]), expected);
    // What is passed over does not come between.
    assert_eq!(groups(&["a.x", "readme", "__m__", "a.y"]), [sample("a", &["x", "y"])]);
    assert_eq!(groups(&["a.JPG", "a.Σ", "a.ΑΣ"]), [sample("a", &["jpg", "σ", "ας"])], "lower case, as Python has it");
    assert_eq!(groups(&[]), []);
}

#[test]
fn bad_samples_are_dropped() {
    let names: [(&[u8], u64); 5] = [(b"a.x", 1), (b"b.y", 1), (b"b.__BAD__", 1), (b"c.x", 1), (b"c.__bad__", 0)];
    assert_eq!(group(&names).expect("intact"), [sample("a", &["x"]), sample("c", &["x", "__bad__"])]);
}

#[test]
fn what_the_package_raises_for_is_refused() {
    let twice = Problem::DuplicateField { name: "a.JPG".into(), field: "jpg".into() };
    assert_eq!(problem(&[b"a.jpg", b"a.JPG"]), (1024, twice));
    for field in RESERVED {
        let name = format!("a.{field}");
        let reserved = Problem::ReservedField { name: name.clone(), field: field.into() };
        assert_eq!(problem(&[name.as_bytes()]), (0, reserved));
    }
    assert_eq!(problem(&[b"a.x", b"a.\xe9"]).1, Problem::FieldName { name: "a.\u{fffd}".into() });
    // Keys may be any bytes.
    assert!(group(&[(b"\xe9.x", 1)]).is_ok());
}

#[test]
fn there_are_as_many_field_names_as_ids() {
    let mut grouper = Grouper::new();
    let mut push = |i: usize| {
        let name = format!("{i}.{i}");
        grouper.push(Member { name: name.as_bytes(), header: 0, offset: 0, size: 0, crc: 0 })
    };
    for i in 0..FIELD_LIMIT {
        push(i).expect("there is room");
    }
    let error = push(FIELD_LIMIT).expect_err("there is none");
    assert_eq!(error.problem, Problem::TooManyFields { limit: FIELD_LIMIT, field: FIELD_LIMIT.to_string() });
}
