//! Quantities for people.

/// `1.5 GB`, `12 kB`
pub(super) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, "B")
}

/// `1 cell`, `57 cells`
pub(super) fn cells(count: usize) -> String {
    if count == 1 { "1 cell".to_owned() } else { format!("{count} cells") }
}

/// `2.3 TFLOP`
pub(super) fn flops(flops: f64) -> String {
    scaled(flops, "FLOP")
}

fn scaled(value: f64, unit: &str) -> String {
    let (divisor, prefix) = match value {
        v if v >= 1e15 => (1e15, "P"),
        v if v >= 1e12 => (1e12, "T"),
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e3 => (1e3, "k"),
        _ => return format!("{value:.0} {unit}"),
    };
    let value = value / divisor;
    let decimals = usize::from(value < 100.0);
    format!("{value:.decimals$} {prefix}{unit}")
}

/// `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`
pub(super) fn seconds(seconds: f64) -> String {
    let whole = seconds.round().max(0.0) as u64;
    match whole {
        _ if seconds < 9.95 => format!("{seconds:.1} s"),
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// Rows in columns, the first row being the head; columns named in `right` stand to the right.
pub(super) fn columns(rows: &[Vec<String>], right: &[usize]) -> String {
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len))
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match right.contains(&column) {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_a_fitting_unit() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1_500), "1.5 kB");
        assert_eq!(bytes(250_000_000), "250 MB");
        assert_eq!(flops(2.34e12), "2.3 TFLOP");
        for (value, text) in
            [(0.04, "0.0 s"), (12.4, "12 s"), (200.0, "3 min 20 s"), (7_500.0, "2 h 5 min"), (273_600.0, "3 d 4 h")]
        {
            assert_eq!(seconds(value), text);
        }
    }

    #[test]
    fn columns_are_in_line() {
        let rows = [["a", "number"], ["bcd", "7"]].map(|row| row.map(str::to_string).to_vec());
        assert_eq!(columns(&rows, &[1]), "a    number\nbcd       7\n");
    }
}
