//! Names of the filters that [`super::rewrite`] inserts into templates, and of Python's dict methods.

/// Methods of a Python dict. Jinja resolves `a.items` to the method even if the dict has a key `items`.
pub(crate) const DICT_METHODS: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

/// Name of the filter that implements `%` with a string on its left.
pub(crate) const PERCENT: &str = "ghostlab_percent";

/// Filter that converts an operand of `~` to a string.
pub(crate) const TEXT: &str = "ghostlab_text";
/// Filters for the operands of a comparison or `in`: the left operand of either, the right operand of a comparison, and
/// the right operand of `in`.
pub(crate) const LEFT: &str = "ghostlab_left";
pub(crate) const RIGHT: &str = "ghostlab_right";
pub(crate) const CONTAINER: &str = "ghostlab_container";
/// Filter that returns a slice of a value.
pub(crate) const SLICE: &str = "ghostlab_slice";
/// Name of the filter that rejects tests on uncalled methods, such as `x.upper is defined`. Python sees a method object
/// there, minijinja an undefined value.
pub(crate) const OWNER: &str = "ghostlab_owner";
