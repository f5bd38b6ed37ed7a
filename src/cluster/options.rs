//! Validation of sbatch options given by the user, and parsing of their time limit.

use std::time::Duration;

use crate::error::{Error, Result};

const SET_BY_GHOSTLAB: &str = "ghostlab sets it for workers and the report job";
const LOGS_HINT: &str = "logs are stored next to the submission; run `ghostlab status` for their paths";
const REQUEUED_BY_GHOSTLAB: &str = "ghostlab requeues workers two minutes before their time limit";
const ONE_PROCESS: &str = "a worker runs as one process on one machine";

/// Options that only ghostlab may set. Each has a long name, an optional short name, and a hint for the error message.
const RESERVED_OPTIONS: [(&str, Option<char>, &str); 20] = [
    ("array", Some('a'), "use --workers and --at-a-time instead"),
    ("comment", None, "ghostlab uses it to identify jobs"),
    ("cpus-per-task", Some('c'), "set `cpus` in the profile file, or use --threads"),
    ("dependency", Some('d'), SET_BY_GHOSTLAB),
    ("error", Some('e'), LOGS_HINT),
    ("export", None, "list variables under `export` in the profile file"),
    ("export-file", None, "list variables under `export` in the profile file"),
    ("input", Some('i'), ONE_PROCESS),
    ("job-name", Some('J'), SET_BY_GHOSTLAB),
    ("no-requeue", None, REQUEUED_BY_GHOSTLAB),
    ("nodes", Some('N'), ONE_PROCESS),
    ("ntasks", Some('n'), ONE_PROCESS),
    ("open-mode", None, "a requeued job appends to its log"),
    ("output", Some('o'), LOGS_HINT),
    ("parsable", None, "ghostlab sets it to read the job number"),
    ("requeue", None, REQUEUED_BY_GHOSTLAB),
    ("signal", None, REQUEUED_BY_GHOSTLAB),
    ("test-only", None, "use --dry-run instead"),
    ("wait", Some('W'), "use `ghostlab status` to see when jobs are done"),
    ("wrap", None, ONE_PROCESS),
];

/// Short sbatch options that take no value, so another option may follow in the same word.
const FLAG_LETTERS: &str = "HIOQWhksuvV";

/// Checks that no option overrides one that ghostlab sets. Also recognizes abbreviated option names, because sbatch
/// accepts them.
///
/// # Errors
/// Fails if an option is reserved or `--`, or if a word contains control characters. The hint of the error gives the
/// reason.
pub fn check_options(words: &[String]) -> Result<()> {
    for word in words {
        if word.chars().any(char::is_control) {
            return reject_option(word, "remove control characters, which the scheduler does not accept");
        }
        let reserved = match word.strip_prefix("--") {
            Some("") => return reject_option(word, "remove `--`: sbatch would read the next argument as a script"),
            Some(long) => {
                let name = long.split('=').next().unwrap_or_default();
                RESERVED_OPTIONS.iter().find(|(long, ..)| long.starts_with(name))
            }
            None => {
                let letters = word.strip_prefix('-').unwrap_or_default();
                let flags = letters.chars().take_while(|&letter| FLAG_LETTERS.contains(letter)).count();
                let mut given = letters.chars().take(flags + 1);
                given.find_map(|letter| RESERVED_OPTIONS.iter().find(|(_, short, _)| *short == Some(letter)))
            }
        };
        if let Some((name, _, hint)) = reserved {
            return reject_option(word, &format!("remove `--{name}`: {hint}"));
        }
    }
    Ok(())
}

fn reject_option(word: &str, hint: &str) -> Result<()> {
    let error = Error::bad_input("sbatch option not allowed");
    Err(error.found(format!("`{word}`")).hint(hint))
}

/// Splits an entry in a profile file into words. Examples of entries are `--exclude=node7` and `-p gpu`.
///
/// # Errors
/// Fails if the entry is not an option, or if ghostlab reserves the option.
pub(super) fn split_entry(entry: &str) -> Result<Vec<String>> {
    if !entry.starts_with('-') {
        return Err(Error::bad_input("invalid sbatch option")
            .expected("one option per entry, such as `--exclude=node7` or `-p gpu`")
            .found(format!("`{entry}`")));
    }
    let words = match entry.split_once(' ') {
        Some((name, value)) if !name.contains('=') => vec![name.to_owned(), value.trim().to_owned()],
        _ => vec![entry.to_owned()],
    };
    check_options(&words).map(|()| words)
}

/// Minimum time limit for a job. It covers loading a backbone, computing a few batches, and the two minutes between the
/// signal and the limit (`--signal=B:USR1@120`).
pub const MIN_TIME_LIMIT: Duration = Duration::from_secs(300);

/// Returns the time limit set by sbatch options, or `None` if there is none. The last option applies.
pub fn time_limit(options: &[String]) -> Option<Duration> {
    let mut found = None;
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let next = if word == "-t" || word == "--time" { words.next().map(String::as_str) } else { None };
        let inline = word.strip_prefix("--time=").or_else(|| word.strip_prefix("-t").filter(|text| !text.is_empty()));
        found = next.or(inline).map(str::to_owned).or(found);
    }
    parse_duration(&found?).filter(|limit| !limit.is_zero())
}

/// Parses `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`, `days-hours:minutes` or
/// `days-hours:minutes:seconds`.
fn parse_duration(text: &str) -> Option<Duration> {
    let (days, rest) = text.split_once('-').map_or((None, text), |(days, rest)| (Some(days), rest));
    let parts: Vec<u64> = rest.split(':').map(parse_number).collect::<Option<_>>()?;
    let [hours, minutes, seconds] = match (days, &parts[..]) {
        (None, &[minutes]) => [0, minutes, 0],
        (None, &[minutes, seconds]) => [0, minutes, seconds],
        (Some(_), &[hours]) => [hours, 0, 0],
        (Some(_), &[hours, minutes]) => [hours, minutes, 0],
        (_, &[hours, minutes, seconds]) => [hours, minutes, seconds],
        _ => return None,
    };
    let days = days.map_or(Some(0), parse_number)?;
    let all = [checked_seconds(days, 86_400)?, checked_seconds(hours, 3600)?, checked_seconds(minutes, 60)?, seconds];
    all.into_iter().try_fold(0, u64::checked_add).map(Duration::from_secs)
}

fn parse_number(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()
}

fn checked_seconds(count: u64, seconds_per_unit: u64) -> Option<u64> {
    count.checked_mul(seconds_per_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_options_are_rejected_in_any_spelling() {
        for entry in [
            "--comment=mine",
            "--comm=mine",
            "--comment mine",
            "--dependency=afterok:1",
            "-d afterok:1",
            "-dafterok:1",
            "--array=0-99",
            "-a0-99",
            "--signal=USR2@10",
            "--no-requeue",
            "--requeue",
            "--open-mode=truncate",
            "--output=log",
            "-o log",
            "-Ho log",
            "-e log",
            "--job-name=x",
            "-J x",
            "--export=ALL",
            "--wrap=true",
            "-N2",
            "--nice=5\nrm -rf x",
            "--",
            "node7",
            "",
        ] {
            let error = split_entry(entry).expect_err(entry);
            assert_eq!(error.exit_code(), 2, "{entry}");
        }
        let message = split_entry("--dep=afterok:1").unwrap_err().to_string();
        assert!(message.contains("`--dep=afterok:1`") && message.contains("--dependency"), "{message}");
        for entry in
            ["--exclude=node7", "--mem=9G", "--gres=gpu:2", "--mail-type=FAIL", "-t4:00", "-Hp gpu", "--nodelist=a"]
        {
            assert!(split_entry(entry).is_ok(), "{entry}");
        }
        assert_eq!(split_entry("--exclude node7").unwrap(), ["--exclude", "node7"]);
        assert_eq!(split_entry("--reservation=a b").unwrap(), ["--reservation=a b"]);
        assert!(check_options(&["-t".to_owned(), "3".to_owned(), "--hold".to_owned()]).is_ok());
    }

    #[test]
    fn time_limits_are_parsed_as_in_slurm() {
        // Examples from the description of `--time` in the sbatch manual.
        for (text, seconds) in
            [("4", 240), ("4:30", 270), ("1:00:05", 3605), ("1-2", 93_600), ("1-2:03", 93_780), ("1-2:03:04", 93_784)]
        {
            assert_eq!(parse_duration(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["UNLIMITED", "", "-", "1:2:3:4", "99999999999999999999", "9999999999999999999-0"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn last_time_limit_wins_in_any_spelling() {
        assert_eq!(limit(&["--time=4:00:00", "-t", "3"]), minutes(3));
        assert_eq!(limit(&["-t7", "--time=2"]), minutes(2));
        assert_eq!(limit(&["--time", "9", "--nice=5"]), minutes(9));
        assert_eq!(limit(&["--nice=5", "--time-min=1"]), None);
        assert_eq!(limit(&["--time=0"]), None, "no limit");
    }

    fn limit(words: &[&str]) -> Option<Duration> {
        time_limit(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
    }

    fn minutes(count: u64) -> Option<Duration> {
        Some(Duration::from_secs(60 * count))
    }
}
