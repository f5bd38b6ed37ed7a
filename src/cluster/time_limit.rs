//! A time limit as Slurm is told it.

use std::time::Duration;

/// Before its time is up by so much a worker is told (`--signal=B:USR1@120`), and what it needs beside that to do something:
/// to load a backbone and to compute a few batches.
pub const SHORTEST: Duration = Duration::from_secs(300);

/// The limit among sbatch's options, of which the last one counts; none where they set none, or one without an end.
pub fn of_options(options: &[String]) -> Option<Duration> {
    let mut found = None;
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let next = if word == "-t" || word == "--time" { words.next().map(String::as_str) } else { None };
        let own = word.strip_prefix("--time=").or_else(|| word.strip_prefix("-t").filter(|text| !text.is_empty()));
        found = next.or(own).map(str::to_owned).or(found);
    }
    read(&found?).filter(|limit| !limit.is_zero())
}

/// `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`, `days-hours:minutes`, `days-hours:minutes:seconds`.
fn read(text: &str) -> Option<Duration> {
    let (days, rest) = text.split_once('-').map_or((None, text), |(days, rest)| (Some(days), rest));
    let number = |text: &str| text.parse::<u64>().ok();
    let parts: Vec<u64> = rest.split(':').map(number).collect::<Option<_>>()?;
    let [hours, minutes, seconds] = match (days, &parts[..]) {
        (None, &[minutes]) => [0, minutes, 0],
        (None, &[minutes, seconds]) => [0, minutes, seconds],
        (Some(_), &[hours]) => [hours, 0, 0],
        (Some(_), &[hours, minutes]) => [hours, minutes, 0],
        (_, &[hours, minutes, seconds]) => [hours, minutes, seconds],
        _ => return None,
    };
    let of = |count: u64, seconds: u64| count.checked_mul(seconds);
    let days = days.map_or(Some(0), number)?;
    let all = [of(days, 86_400)?, of(hours, 3600)?, of(minutes, 60)?, seconds];
    all.into_iter().try_fold(0, u64::checked_add).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_slurm_reads_them() {
        // From sbatch's manual, under --time.
        for (text, seconds) in
            [("4", 240), ("4:30", 270), ("1:00:05", 3605), ("1-2", 93_600), ("1-2:03", 93_780), ("1-2:03:04", 93_784)]
        {
            assert_eq!(read(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["UNLIMITED", "", "-", "1:2:3:4", "99999999999999999999", "9999999999999999999-0"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn the_last_limit_counts_however_it_is_written() {
        let of = |words: &[&str]| of_options(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        let minutes = |count: u64| Some(Duration::from_secs(60 * count));
        assert_eq!(of(&["--time=4:00:00", "-t", "3"]), minutes(3));
        assert_eq!(of(&["-t7", "--time=2"]), minutes(2));
        assert_eq!(of(&["--time", "9", "--nice=5"]), minutes(9));
        assert_eq!(of(&["--nice=5", "--time-min=1"]), None);
        assert_eq!(of(&["--time=0"]), None, "no limit");
    }
}
