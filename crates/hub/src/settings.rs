//! Settings from the environment variables of `huggingface_hub`, with the same semantics.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ghostlab_core::error::{Error, Result};
use reqwest::Url;

use crate::token::Token;

/// Endpoint, cache, credentials and timeouts.
#[derive(Debug, Clone)]
pub struct HubSettings {
    /// URL of the Hub (`HF_ENDPOINT`).
    pub endpoint: Url,
    /// Cache folder: `HF_HUB_CACHE`, or `hub` below `HF_HOME`.
    pub cache: PathBuf,
    /// Access token: `HF_TOKEN`, or the content of the file `HF_TOKEN_PATH`.
    pub token: Option<Token>,
    /// Whether network requests are disabled (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// Whether snapshots contain symlinks to blobs. Disabled by `HF_HUB_DISABLE_SYMLINKS`.
    pub symlinks: bool,
    pub retry_policy: RetryPolicy,
    /// Maximum number of concurrent downloads.
    pub max_downloads: usize,
}

/// Timeouts and retry limits.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// Timeout for the headers of a response (`HF_HUB_ETAG_TIMEOUT`).
    pub response_timeout: Duration,
    /// Maximum time without data during a transfer (`HF_HUB_DOWNLOAD_TIMEOUT`).
    pub stall_timeout: Duration,
    /// Maximum number of consecutive attempts without progress.
    pub max_attempts: u32,
    /// Delay before the second attempt. It doubles with each further attempt, up to `max_delay`.
    pub initial_delay: Duration,
    pub max_delay: Duration,
    /// Maximum delay that the Hub may request. A longer one is an error.
    pub max_requested_delay: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            response_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            max_attempts: 6,
            initial_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(30),
            max_requested_delay: Duration::from_secs(900),
        }
    }
}

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

impl HubSettings {
    /// Reads the settings from the environment.
    ///
    /// # Errors
    /// Fails if the endpoint, the token or a timeout is invalid, or the token file cannot be read.
    pub fn from_env() -> Result<Self> {
        Self::from_vars(&|name| std::env::var_os(name))
    }

    /// Reads the settings from the given variables.
    ///
    /// # Errors
    /// Fails in the same cases as [`from_env`](Self::from_env).
    pub fn from_vars(lookup: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        let variables = Variables(lookup);
        let home = variables.path("HF_HOME").unwrap_or_else(|| {
            let caches = variables.path("XDG_CACHE_HOME").unwrap_or_else(|| variables.expand_path("~/.cache"));
            caches.join("huggingface")
        });
        let cache = variables.path("HF_HUB_CACHE").or_else(|| variables.path("HUGGINGFACE_HUB_CACHE"));
        let offline =
            if variables.nonempty("HF_HUB_OFFLINE").is_some() { "HF_HUB_OFFLINE" } else { "TRANSFORMERS_OFFLINE" };
        let retry_policy = RetryPolicy::default();
        Ok(Self {
            endpoint: parse_endpoint(variables.nonempty("HF_ENDPOINT").as_deref().unwrap_or(DEFAULT_ENDPOINT))?,
            cache: cache.unwrap_or_else(|| home.join("hub")),
            token: match variables.is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
                true => None,
                false => load_token(variables, &variables.path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token")))?,
            },
            offline: variables.is_true(offline),
            symlinks: !variables.is_true("HF_HUB_DISABLE_SYMLINKS"),
            retry_policy: RetryPolicy {
                response_timeout: variables.timeout("HF_HUB_ETAG_TIMEOUT", retry_policy.response_timeout)?,
                stall_timeout: variables.timeout("HF_HUB_DOWNLOAD_TIMEOUT", retry_policy.stall_timeout)?,
                ..retry_policy
            },
            max_downloads: 4,
        })
    }
}

/// Environment variables, given as a function that looks them up.
#[derive(Clone, Copy)]
struct Variables<'a>(&'a dyn Fn(&str) -> Option<OsString>);

impl Variables<'_> {
    fn text(self, name: &str) -> Option<String> {
        (self.0)(name)?.into_string().ok()
    }

    fn nonempty(self, name: &str) -> Option<String> {
        self.text(name).filter(|value| !value.is_empty())
    }

    fn is_true(self, name: &str) -> bool {
        self.text(name).is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str()))
    }

    fn path(self, name: &str) -> Option<PathBuf> {
        self.text(name).map(|value| self.expand_path(&value))
    }

    fn timeout(self, name: &str, default: Duration) -> Result<Duration> {
        let Some(value) = self.nonempty(name) else { return Ok(default) };
        match value.parse::<u32>() {
            // As in `huggingface_hub`, 0 selects the default.
            Ok(0) => Ok(default),
            Ok(seconds) => Ok(Duration::from_secs(u64::from(seconds))),
            Err(_) => Err(Error::bad_input(format!("{name} is not a number of seconds")).found(format!("`{value}`"))),
        }
    }

    /// Expands `~`, `$NAME` and `${NAME}` in a path. References to unset variables are kept.
    fn expand_path(self, text: &str) -> PathBuf {
        let text = match text.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                let home = self.text("HOME").or_else(|| self.text("USERPROFILE"));
                format!("{}{rest}", home.as_deref().unwrap_or("~"))
            }
            _ => text.to_owned(),
        };
        let mut expanded = String::new();
        let mut rest = text.as_str();
        while let Some(start) = rest.find('$') {
            expanded.push_str(&rest[..start]);
            let after = &rest[start + 1..];
            let (name, end) = match after.strip_prefix('{') {
                Some(inner) => inner.find('}').map_or(("", 0), |end| (&inner[..end], end + 2)),
                None => {
                    let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
                    (&after[..end], end)
                }
            };
            match self.text(name).filter(|_| !name.is_empty()) {
                Some(value) => expanded.push_str(&value),
                None => expanded.push_str(&rest[start..start + 1 + end]),
            }
            rest = &after[end..];
        }
        expanded.push_str(rest);
        expanded.into()
    }
}

fn parse_endpoint(text: &str) -> Result<Url> {
    let text = text.trim_end_matches('/');
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    // Messages include the URL, so it must not contain credentials.
    let url = url.filter(|url| url.username().is_empty() && url.password().is_none());
    url.ok_or_else(|| {
        Error::bad_input("HF_ENDPOINT is not the address of a hub")
            .expected("https://host, without user name and password")
            .hint(format!("unset the variable to use {DEFAULT_ENDPOINT}"))
    })
}

fn load_token(variables: Variables<'_>, file: &Path) -> Result<Option<Token>> {
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(token) = Token::new(&variables.text(name).unwrap_or_default(), name)? {
            return Ok(Some(token));
        }
    }
    match std::fs::read_to_string(file) {
        Ok(text) => Token::new(&text, &file.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(Error::io("read", file, &error).hint("check the permissions of the file, which contains the hub token"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings_from(variables: &[(&str, &str)]) -> Result<HubSettings> {
        HubSettings::from_vars(&|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn cache_folder_matches_huggingface_hub() {
        // Expected values: `python -c 'from huggingface_hub import constants; print(constants.HF_HUB_CACHE)'`.
        for (variables, cache) in [
            (&[("HOME", "/u")][..], "/u/.cache/huggingface/hub"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/u"), ("HF_HOME", "~/hf")], "/u/hf/hub"),
            (&[("HOME", "/u"), ("HF_HOME", "/h"), ("HF_HUB_CACHE", "$HOME/c/${HOME}$NONE")], "/u/c//u$NONE"),
            (&[("HOME", "/u"), ("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
        ] {
            assert_eq!(settings_from(variables).unwrap().cache, PathBuf::from(cache), "{variables:?}");
        }
    }

    #[test]
    fn token_is_read_from_environment_or_file() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        assert!(settings_from(&[("HF_HOME", home)]).unwrap().token.is_none());
        std::fs::write(folder.path().join("token"), "hf_of_file\n").unwrap();
        assert_eq!(settings_from(&[("HF_HOME", home)]).unwrap().token, parse_token("hf_of_file"));
        assert_eq!(
            settings_from(&[("HF_HOME", home), ("HF_TOKEN", "hf_of_variable")]).unwrap().token,
            parse_token("hf_of_variable")
        );
        assert!(settings_from(&[("HF_HOME", home), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).unwrap().token.is_none());
        std::fs::write(folder.path().join("elsewhere"), "hf_elsewhere").unwrap();
        let path = folder.path().join("elsewhere");
        let settings = settings_from(&[("HF_HOME", home), ("HF_TOKEN_PATH", path.to_str().unwrap())]).unwrap();
        assert_eq!(settings.token, parse_token("hf_elsewhere"));
        assert!(!format!("{settings:?}").contains("hf_elsewhere"));
    }

    fn parse_token(text: &str) -> Option<Token> {
        Token::new(text, "").unwrap()
    }

    #[test]
    fn offline_endpoint_and_timeout_variables_are_read() {
        for (value, offline) in [("1", true), ("yes", true), ("0", false), ("", false)] {
            assert_eq!(settings_from(&[("HF_HUB_OFFLINE", value)]).unwrap().offline, offline, "{value}");
        }
        assert!(settings_from(&[("TRANSFORMERS_OFFLINE", "1")]).unwrap().offline);
        assert_eq!(
            settings_from(&[("HF_ENDPOINT", "http://mirror:8080/")]).unwrap().endpoint.as_str(),
            "http://mirror:8080/"
        );
        assert_eq!(
            settings_from(&[("HF_HUB_DOWNLOAD_TIMEOUT", "7")]).unwrap().retry_policy.stall_timeout,
            Duration::from_secs(7)
        );
        assert!(settings_from(&[("HF_HUB_DOWNLOAD_TIMEOUT", "soon")]).is_err());
        for endpoint in ["huggingface.co", "ftp://host", "https://me:secret@host"] {
            let error = settings_from(&[("HF_ENDPOINT", endpoint)]).unwrap_err().to_string();
            assert!(error.contains("HF_ENDPOINT") && !error.contains("secret"), "{error}");
        }
    }
}
