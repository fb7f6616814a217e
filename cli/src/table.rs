//! Plain tables: a header, rows, columns as wide as they need.

/// Lays rows out under their headers; the first column is text, the others are figures.
pub fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (i, (cell, &width)) in cells.zip(&widths).enumerate() {
            if i == 0 {
                line.push_str(&format!("{cell:<width$}"));
            } else {
                line.push_str(&format!("  {cell:>width$}"));
            }
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    };
    let mut text = line(&mut header.iter().copied());
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up() {
        let text =
            super::render(&["path", "MB/s"], &[vec!["loopback".into(), "5".into()], vec!["x".into(), "12345".into()]]);
        assert_eq!(text, "path       MB/s\nloopback      5\nx         12345\n");
    }
}
