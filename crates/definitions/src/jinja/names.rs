//! Names of the filters that [`super::rewrite`] inserts into templates, and of Python's dict methods.

/// Methods of a Python dict. Jinja resolves `a.items` to the method even if the dict has a key `items`.
pub(crate) const DICT_METHODS: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

/// Filter that implements `%` with a string on its left.
pub(crate) const PERCENT: &str = "ghostlab_percent";

/// Filter that converts an operand of `~` to a string.
pub(crate) const TEXT: &str = "ghostlab_text";
/// Filter for the left operand of a comparison or `in`.
pub(crate) const LEFT: &str = "ghostlab_left";
/// Filter for the right operand of a comparison.
pub(crate) const RIGHT: &str = "ghostlab_right";
/// Filter for the right operand of `in`.
pub(crate) const CONTAINER: &str = "ghostlab_container";
/// Filter that returns a slice of a value.
pub(crate) const SLICE: &str = "ghostlab_slice";
/// Filter that rejects tests on uncalled methods, such as `x.upper is defined`. `x.upper` is a method object in Python,
/// but undefined in minijinja.
pub(crate) const OWNER: &str = "ghostlab_owner";
