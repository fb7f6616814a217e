//! Which class a sample is of.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use super::walk::{Content, Field, Item};
use super::{Labels, PackError};

/// The field that says so.
const FIELD: &str = "cls";

/// How labels became numbers.
pub(super) enum Classes {
    /// They were numbers, or there are none.
    AsTheyAre,
    /// By number.
    Numbered(Vec<String>),
}

/// Gives each sample its field `cls`.
pub(super) fn label(items: &mut [Item], labels: &Labels) -> Result<Classes, PackError> {
    let of: Vec<Option<String>> = match labels {
        Labels::None => return Ok(Classes::AsTheyAre),
        Labels::Folders => items.iter().map(|item| Some(item.key.split_once('/')?.0.to_owned())).collect(),
        Labels::Csv(path) => {
            let table = table(path)?;
            let find = |item: &Item| {
                let names = item.paths.iter().chain([&item.key]);
                names.filter_map(|name| table.get(name.as_str())).next().cloned()
            };
            items.iter().map(find).collect()
        }
    };
    let without = || of.iter().zip(&*items).filter(|(label, _)| label.is_none()).map(|(_, item)| item);
    if let Some(first) = without().next() {
        return Err(PackError::Unlabelled { count: without().count(), key: first.key.clone() });
    }
    if let Some(item) = items.iter().find(|item| item.fields.iter().any(|field| field.name == FIELD)) {
        return Err(PackError::Labelled { key: item.key.clone() });
    }
    let of: Vec<String> = of.into_iter().flatten().collect();
    let number = |label: &String| !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = matches!(labels, Labels::Csv(_)) && of.iter().all(number);
    let classes: Vec<String> = of.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
    for (item, label) in items.iter_mut().zip(of) {
        let class = match numbers {
            true => label,
            false => classes.binary_search(&label).unwrap_or_default().to_string(),
        };
        let field = Field { name: FIELD.into(), len: class.len() as u64, content: Content::Bytes(class.into_bytes()) };
        let at = item.fields.partition_point(|other| other.name.as_str() < FIELD);
        item.fields.insert(at, field);
    }
    Ok(if numbers { Classes::AsTheyAre } else { Classes::Numbered(classes) })
}

/// Label by file or key. A first line that names no file is a header by itself: nothing looks for it.
fn table(path: &Path) -> Result<HashMap<String, String>, PackError> {
    let text = fs::read_to_string(path).map_err(|source| PackError::Read { path: path.to_owned(), source })?;
    let mut table = HashMap::new();
    for (line, row) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        if row.trim().is_empty() {
            continue;
        }
        let bad = |why| PackError::Csv { path: path.to_owned(), line: line + 1, why };
        let (name, rest) = cell(row).ok_or_else(|| bad("a quote is open"))?;
        let rest = rest.ok_or_else(|| bad("expected FILE,LABEL"))?;
        let (label, _) = cell(rest).ok_or_else(|| bad("a quote is open"))?;
        let name = name.trim_start_matches("./").to_owned();
        if table.insert(name, label).is_some() {
            return Err(bad("this file has a label already"));
        }
    }
    Ok(table)
}

/// The first cell of a row of a CSV file, and what follows its comma.
fn cell(row: &str) -> Option<(String, Option<&str>)> {
    let Some(mut quoted) = row.strip_prefix('"') else {
        let (cell, rest) = row.split_once(',').map_or((row, None), |(cell, rest)| (cell, Some(rest)));
        return Some((cell.trim().to_owned(), rest));
    };
    let mut cell = String::new();
    loop {
        let (piece, rest) = quoted.split_once('"')?;
        cell.push_str(piece);
        match rest.strip_prefix('"') {
            // A quote that is doubled stands for itself.
            Some(rest) => {
                cell.push('"');
                quoted = rest;
            }
            None => return Some((cell, rest.trim_start().strip_prefix(','))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::cell;

    #[test]
    fn cells() {
        let is = |row, cell_is: &str, rest| assert_eq!(cell(row), Some((cell_is.to_owned(), rest)), "{row}");
        is("a.jpg,cat", "a.jpg", Some("cat"));
        is("\"a,b\"\"c.jpg\",3,x", "a,b\"c.jpg", Some("3,x"));
        is("a", "a", None);
        is("", "", None);
        assert_eq!(cell("\"open,x"), None);
    }
}
