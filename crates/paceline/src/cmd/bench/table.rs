//! [`Table`]: figures in columns, for the terminal and for HTML.

use std::fmt;

/// Columns under a head; the first one is on the left, the others on the right.
#[derive(Default)]
pub struct Table {
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<const N: usize>(head: [&str; N]) -> Table {
        Table { head: head.map(str::to_owned).to_vec(), rows: Vec::new() }
    }

    pub fn push<const N: usize>(&mut self, row: [String; N]) {
        self.rows.push(row.to_vec());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let lines = || [&self.head].into_iter().chain(&self.rows);
        let width = |column: usize| {
            let cells = lines().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        for line in lines() {
            let mut text = String::new();
            for (i, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                text += &match i {
                    0 => format!("{cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                };
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// A figure with as many digits as say something.
pub fn figure(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["", "ms"]);
        table.push(["größer".to_owned(), figure(1234.4)]);
        table.push(["b".to_owned(), figure(9.876)]);
        assert_eq!(table.to_string(), "          ms\ngrößer  1234\nb       9.88\n");
    }
}
