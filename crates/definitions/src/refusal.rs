//! Error for template operations that this crate does not support.

use minijinja::{Error, ErrorKind};

/// Creates the error for an unsupported template operation.
pub(crate) fn unsupported_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}
