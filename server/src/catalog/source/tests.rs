use std::os::unix::fs::symlink;

use super::*;

fn expanded(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    assert!(expand(text, &mut out).is_ok(), "{text}");
    out
}

#[test]
fn braces_expand_as_in_a_shell() {
    let cases: &[(&str, &[&str])] = &[
        ("plain", &["plain"]),
        ("{a,b}", &["a", "b"]),
        ("x{b,a}y", &["xby", "xay"]),
        ("{a,b}{1,2}", &["a1", "a2", "b1", "b2"]),
        ("{a,{b,c}d,{}}", &["a", "bd", "cd", "{}"]),
        ("{,x}", &["", "x"]),
        ("{1..3}", &["1", "2", "3"]),
        ("{08..11}", &["08", "09", "10", "11"]),
        ("{8..011}", &["008", "009", "010", "011"]),
        ("{3..1}", &["3", "2", "1"]),
        ("{0..10..5}", &["0", "5", "10"]),
        ("{a..c}", &["a", "b", "c"]),
        ("s-{000000..000002}.tar", &["s-000000.tar", "s-000001.tar", "s-000002.tar"]),
        ("{train-{0..1},val}.tar", &["train-0.tar", "train-1.tar", "val.tar"]),
        // No lists.
        ("{}", &["{}"]),
        ("{a}", &["{a}"]),
        ("{a{1,2}}", &["{a1}", "{a2}"]),
        ("{a", &["{a"]),
        ("a}", &["a}"]),
        ("{{1,2}", &["{1", "{2"]),
        ("{1..}", &["{1..}"]),
        ("{1..b}", &["{1..b}"]),
        ("{1..2..0}", &["{1..2..0}"]),
        ("{1..2..3..4}", &["{1..2..3..4}"]),
        ("{99999999999999999999999..1}", &["{99999999999999999999999..1}"]),
    ];
    for (text, expected) in cases {
        assert_eq!(expanded(text), *expected, "{text}");
    }
}

#[test]
fn too_many_files_are_refused_before_they_fill_the_memory() {
    for text in ["{0..9999999}", "{0..18446744073709551615}", "{0..999999}{0..999999}", &"{a,b}".repeat(64)] {
        assert!(expand(text, &mut Vec::new()).is_err(), "{text}");
    }
}

struct Place(tempfile::TempDir);

impl Place {
    fn new(files: &[&str]) -> Place {
        let place = Place(tempfile::tempdir().expect("a folder"));
        for file in files {
            let path = place.0.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, "").expect("made");
        }
        place
    }

    fn resolve(&self, spec: &str) -> Result<Vec<String>, SourceError> {
        let found = resolve(&format!("{}/{spec}", self.0.path().display()))?;
        assert!(
            found
                .iter()
                .all(|file| file.place.file().is_some_and(|path| path.ends_with(&file.name) && path.is_absolute()))
        );
        Ok(found.into_iter().map(|file| file.name).collect())
    }

    fn names(&self, spec: &str) -> Vec<String> {
        self.resolve(spec).unwrap_or_else(|error| panic!("{spec}: {error}"))
    }
}

#[test]
fn wildcards_and_folders_sort_bytewise() {
    let place =
        Place::new(&["d/b.tar", "d/B.tar", "d/a10.tar", "d/a9.tar", "d/é.tar", "d/sub/z.tar", "d/.hid.tar", "d/x.txt"]);
    let flat = ["B.tar", "a10.tar", "a9.tar", "b.tar", "é.tar"];
    assert_eq!(place.names("d/*.tar"), flat);
    let deep = ["B.tar", "a10.tar", "a9.tar", "b.tar", "sub/z.tar", "é.tar"];
    assert_eq!(place.names("d"), deep);
    assert_eq!(place.names("d/"), deep);
    assert_eq!(place.names("d/**/*.tar"), deep);
    assert_eq!(place.names("d/a?.tar"), ["a9.tar"]);
    assert_eq!(place.names("d/[aB]*.tar"), ["B.tar", "a10.tar", "a9.tar"]);
    assert_eq!(place.names("*/b.tar"), ["d/b.tar"]);
    assert_eq!(place.names("d/b.tar"), ["b.tar"]);
}

#[test]
fn brace_lists_keep_their_order() {
    let place = Place::new(&["d/a.tar", "d/b.tar", "d/c1.tar", "d/c2.tar", "e/a.tar"]);
    assert_eq!(place.names("d/{b,a}.tar"), ["b.tar", "a.tar"]);
    assert_eq!(place.names("d/{c*,a}.tar"), ["c1.tar", "c2.tar", "a.tar"], "sorted within each pattern");
    assert_eq!(place.names("{e,d}/a.tar"), ["e/a.tar", "d/a.tar"]);
}

#[test]
fn what_exists_is_taken_by_its_name() {
    let place = Place::new(&["x[1].tar", "y{a,b}.tar", "ya.tar"]);
    assert_eq!(place.names("x[1].tar"), ["x[1].tar"]);
    assert_eq!(place.names("y{a,b}.tar"), ["y{a,b}.tar"]);
}

#[test]
fn links_are_followed_once() {
    let place = Place::new(&["d/a.tar", "other/b.tar"]);
    symlink("../other", place.0.path().join("d/linked")).expect("linked");
    symlink("..", place.0.path().join("other/circle")).expect("linked");
    symlink("a.tar", place.0.path().join("d/again.tar")).expect("linked");
    assert_eq!(place.names("d"), ["a.tar", "again.tar", "linked/b.tar"]);
}

#[test]
fn errors_say_what_was_looked_for() {
    let place = Place::new(&["d/0.tar", "d/5.tar", "e/x.txt", "f.tar/x"]);
    let error = |spec: &str| place.resolve(spec).expect_err(spec).to_string();
    let root = place.0.path().display();
    assert_eq!(error("d/*.tgz"), format!("nothing matches {root}/d/*.tgz"));
    assert_eq!(error("nowhere"), format!("nothing matches {root}/nowhere"));
    assert_eq!(error("e"), format!("nothing matches {root}/e/**/*.tar"));
    assert_eq!(error("d/{6..7}.tar"), format!("nothing matches {root}/d/{{6..7}}.tar"));
    let missing = error("d/{0..5}.tar");
    assert!(missing.starts_with("4 of the 6 files that "), "{missing}");
    assert!(missing.ends_with(&format!("are missing: {root}/d/1.tar, {root}/d/2.tar, {root}/d/3.tar, …")), "{missing}");
    assert!(error("d/{0,5,0}.tar").ends_with("names 0.tar twice"));
    assert_eq!(error("f*"), format!("{root}/f.tar is not a regular file"));
    symlink("gone", place.0.path().join("e/l.tar")).expect("linked");
    assert_eq!(error("e"), format!("{root}/e/l.tar is not a regular file"));
    assert!(error("d/[").contains("is not a pattern"));
}

#[test]
fn names_that_are_not_text_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new(&["d/a.tar"]);
    let odd = place.0.path().join("d").join(std::ffi::OsStr::from_bytes(b"\xff.tar"));
    if fs::write(odd, "").is_ok() {
        assert!(matches!(place.resolve("d"), Err(SourceError::NotUtf8 { .. })));
    }
}

#[cfg(not(feature = "remote"))]
#[test]
fn urls_need_the_feature() {
    let error = resolve("s3://bucket/a/").expect_err("refused").to_string();
    assert!(error.contains("s3://bucket/a/") && error.contains("without the feature `remote`"), "{error}");
}
