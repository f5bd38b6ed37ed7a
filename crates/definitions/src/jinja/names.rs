//! Names of the filters that [`super::rewrite`] puts into templates, and of the methods of a Python dict.

/// Methods of a Python dict. Jinja's `a.items` is the method, whatever keys the dict has.
pub(crate) const DICT_METHODS: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

/// Name of the filter that does what `%` does after a text.
pub(crate) const PERCENT: &str = "ghostlab_percent";

/// Name of the filter that makes a text of an operand of `~`.
pub(crate) const TEXT: &str = "ghostlab_text";
/// Names of the filters of the left operand of a comparison or `in`, and of the right one of each.
pub(crate) const LEFT: &str = "ghostlab_left";
pub(crate) const RIGHT: &str = "ghostlab_right";
pub(crate) const CONTAINER: &str = "ghostlab_container";
/// Name of the filter that takes a slice.
pub(crate) const SLICE: &str = "ghostlab_slice";
/// Name of the filter of a value whose method is tested.
pub(crate) const OWNER: &str = "ghostlab_owner";
