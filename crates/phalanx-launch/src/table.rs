//! Text tables, for every subcommand: a line a row, columns that line up. A cell that is too long moves the rest of its line.

/// One column: its name, its least width, and where cells stand in it.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    name: &'static str,
    width: usize,
    is_left: bool,
}

/// Words stand on the left.
pub fn left(name: &'static str, width: usize) -> Column {
    Column { name, width, is_left: true }
}

/// Numbers stand on the right.
pub fn right(name: &'static str, width: usize) -> Column {
    Column { name, width, is_left: false }
}

/// The columns of a table. Rows may come one by one.
#[derive(Clone, Debug)]
pub struct TextTable {
    columns: Vec<Column>,
    is_wide: bool,
}

impl TextTable {
    /// One space between columns, two between a number and the word after it.
    pub fn new(columns: &[Column]) -> TextTable {
        TextTable { columns: columns.to_vec(), is_wide: false }
    }

    /// Two spaces before every column.
    pub fn wide(columns: &[Column]) -> TextTable {
        TextTable { columns: columns.to_vec(), is_wide: true }
    }

    /// The names of the columns.
    pub fn head(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|c| c.name.to_string()).collect();
        self.row(&names)
    }

    /// A line for these cells, one for each column.
    pub fn row(&self, cells: &[impl AsRef<str>]) -> String {
        let mut line = String::new();
        let mut before: Option<&Column> = None;
        for (column, cell) in self.columns.iter().zip(cells) {
            line.push_str(self.gap(before, column));
            let (cell, width) = (cell.as_ref(), column.width);
            let padded = if column.is_left { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
            line.push_str(&padded);
            before = Some(column);
        }
        line.truncate(line.trim_end().len());
        line
    }

    fn gap(&self, before: Option<&Column>, column: &Column) -> &'static str {
        match before {
            None if !self.is_wide => "",
            Some(before) if !self.is_wide && (before.is_left || !column.is_left) => " ",
            _ => "  ",
        }
    }
}

/// All rows at once, the first one with the names: words on the left, each column as wide as its longest cell.
pub fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] = std::array::from_fn(|i| widest(rows.iter().map(|row| row[i].as_str())));
    let line = |row: &[String; N]| {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_string() + "\n"
    };
    rows.iter().map(line).collect()
}

/// The width of the longest of these.
pub fn widest<'a>(cells: impl IntoIterator<Item = &'a str>) -> usize {
    cells.into_iter().map(|cell| cell.chars().count()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let table = TextTable::new(&[left("plan", 8), right("us", 6), right("steps", 5), left("note", 0)]);
        assert_eq!(table.head(), "plan         us steps  note");
        assert_eq!(table.row(&["ring", "1.5", "12", "<- selected"]), "ring        1.5    12  <- selected");
        assert_eq!(table.row(&["ring", "1.5", "12", ""]), "ring        1.5    12");
        assert_eq!(table.row(&["halving-doubling", "1.5", "12", "x"]), "halving-doubling    1.5    12  x");
    }

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let rows = [["step", "size"].map(String::from), ["100000".into(), "1.5 MB".into()]];
        assert_eq!(aligned(&rows), "step    size\n100000  1.5 MB\n");
    }

    #[test]
    fn wide_tables_have_two_spaces_before_every_column() {
        let table = TextTable::wide(&[left("host", widest(["n0", "node1"])), right("ranks", 6)]);
        assert_eq!([table.head(), table.row(&["n0", "0-1"])], ["  host    ranks", "  n0        0-1"]);
    }
}
