//! Numbers and tables as a page and a terminal show them.

use std::fmt::Write as _;

/// Rows under a head; the first column is words, the others are numbers.
#[derive(Debug)]
pub(super) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(head: Vec<String>) -> Self {
        Self {
            head,
            rows: Vec::new(),
        }
    }

    /// Adds a row; it has as many cells as the head.
    pub(super) fn row(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// As Markdown, numbers to the right.
    pub(super) fn markdown(&self) -> String {
        self.render(|column| if column == 0 { "---" } else { "---:" })
    }

    /// As Markdown, all of it words.
    pub(super) fn words(&self) -> String {
        self.render(|_| "---")
    }

    fn render(&self, rule: impl Fn(usize) -> &'static str) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rules: Vec<_> = (0..self.head.len())
            .map(|column| rule(column).to_owned())
            .collect();
        let mut text = line(&self.head);
        text.push_str(&line(&rules));
        self.rows.iter().for_each(|row| text.push_str(&line(row)));
        text
    }

    /// In columns.
    pub(super) fn plain(&self) -> String {
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let widths: Vec<_> = (0..self.head.len())
            .map(|column| {
                let cells = all().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for row in all() {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let width = *width;
                // Writing to a string cannot fail.
                let _ = if column == 0 {
                    write!(line, "{cell:<width$}")
                } else {
                    write!(line, "  {cell:>width$}")
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A whole number, its thousands apart.
pub(super) fn number(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0.0 && digits != "0" {
        format!("-{text}")
    } else {
        text
    }
}

/// A ratio.
pub(super) fn ratio(ratio: f64) -> String {
    format!("{ratio:.2}")
}

/// Kibibytes, in the unit that suits.
pub(super) fn memory(kib: f64) -> String {
    if kib.abs() >= 10_240.0 {
        format!("{:.1} MiB", kib / 1024.0)
    } else {
        format!("{} KiB", number(kib))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        let cases = [
            (0.4, "0"),
            (-0.4, "0"),
            (999.5, "1,000"),
            (-1234.0, "-1,234"),
            (1e6, "1,000,000"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!(memory(10_239.0), "10,239 KiB");
        assert_eq!(memory(15_360.0), "15.0 MiB");
    }

    #[test]
    fn tables_line_up() {
        let mut table = Table::new(vec!["what".to_owned(), "much".to_owned()]);
        table.row(vec!["a".to_owned(), "10,000".to_owned()]);
        assert_eq!(table.plain(), "what    much\na     10,000\n");
        assert_eq!(
            table.markdown(),
            "| what | much |\n| --- | ---: |\n| a | 10,000 |\n"
        );
    }
}
