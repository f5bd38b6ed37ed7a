//! Python iterables that are not lists (iterators, dict views, ranges), and Jinja's callable objects `joiner` and
//! `cycler`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind, from_args};
use minijinja::{Environment, Error, State, Value as Jinja};

use super::names::{DICT_METHODS, OWNER};
use crate::refusal::unsupported_error;

/// Adds the filter that rejects uncalled methods, such as `x.upper`. In Python, such an expression is a method object,
/// whereas in minijinja it is undefined.
pub(super) fn add_method_check(environment: &mut Environment<'static>) {
    environment.add_filter(OWNER, |value: Jinja, method: String| match value.kind() {
        ValueKind::Map if !DICT_METHODS.contains(&method.as_str()) => Ok(value),
        ValueKind::String | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            Err(unsupported_error(format!("`.{method}` is a method: call it, or remove the `is defined` test")))
        }
        _ => Ok(value),
    });
}

/// Python iterator, as returned by `map` and `select`. It can be consumed only once and has no length.
#[derive(Debug)]
pub(crate) struct Lazy(Mutex<VecDeque<Jinja>>);

impl Lazy {
    pub(crate) fn new_value(items: impl IntoIterator<Item = Jinja>) -> Jinja {
        Jinja::from_object(Self(Mutex::new(items.into_iter().collect())))
    }
}

/// Iterator over the remaining items of a [`Lazy`]. Its size hint is exact, because `loop.last` and `loop.length` use
/// it.
struct LazyItems(Arc<Lazy>);

impl Iterator for LazyItems {
    type Item = Jinja;

    fn next(&mut self) -> Option<Jinja> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = self.0.0.lock().unwrap_or_else(PoisonError::into_inner).len();
        (remaining, Some(remaining))
    }
}

impl Object for Lazy {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn get_value(self: &Arc<Self>, _: &Jinja) -> Option<Jinja> {
        Some(unsupported_error("an iterator cannot be indexed: apply `list` to it").into())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(LazyItems(self.clone())))
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }
}

/// Dict view: `dict_items`, `dict_keys` or `dict_values`.
#[derive(Debug)]
pub(crate) struct DictView {
    pub(crate) name: &'static str,
    pub(crate) items: Vec<Jinja>,
}

impl Object for DictView {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn get_value(self: &Arc<Self>, _: &Jinja) -> Option<Jinja> {
        Some(unsupported_error(format!("`{}` cannot be indexed: apply `list` to it", self.name)).into())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }
}

/// Python `range`.
#[derive(Debug)]
pub(crate) struct Range {
    /// Start, exclusive stop and step.
    bounds: [i64; 3],
    items: Vec<Jinja>,
}

fn range_error() -> Error {
    unsupported_error("a range bound is too large")
}

impl Range {
    /// Creates a range from one to three arguments.
    pub(crate) fn new_value(first: i64, stop: Option<i64>, step: Option<i64>) -> Result<Jinja, Error> {
        let bounds = [if stop.is_some() { first } else { 0 }, stop.unwrap_or(first), step.unwrap_or(1)];
        let [Ok(start), Ok(stop), Ok(step)] = bounds.map(isize::try_from) else { return Err(range_error()) };
        let items = minijinja::functions::range(start, Some(stop), Some(step))?.try_iter()?.collect();
        Ok(Jinja::from_object(Self { bounds, items }))
    }

    /// Slices the range like Python's `range[start:stop:step]`. The arguments must be normalized as in Python's
    /// `slice.indices`.
    pub(crate) fn sliced(&self, start: i64, stop: i64, step: i64) -> Result<Jinja, Error> {
        let [first, _, width] = self.bounds;
        let ends = [start, stop].map(|position| width.checked_mul(position)?.checked_add(first));
        let ([Some(start), Some(stop)], Some(step)) = (ends, width.checked_mul(step)) else {
            return Err(range_error());
        };
        Self::new_value(start, Some(stop), Some(step))
    }

    pub(crate) fn repr(&self) -> String {
        match self.bounds {
            [start, stop, 1] => format!("range({start}, {stop})"),
            [start, stop, step] => format!("range({start}, {stop}, {step})"),
        }
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        self.items.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }
}

/// Jinja's `joiner`, which returns an empty string on the first call and the separator afterwards.
#[derive(Debug)]
pub(crate) struct Joiner {
    separator: String,
    calls: AtomicUsize,
}

impl Joiner {
    pub(crate) fn new_value(separator: Option<String>) -> Jinja {
        let separator = separator.unwrap_or_else(|| ", ".to_owned());
        Jinja::from_object(Self { separator, calls: AtomicUsize::new(0) })
    }
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Jinja]) -> Result<Jinja, Error> {
        let () = from_args(args)?;
        let is_first = self.calls.fetch_add(1, Ordering::Relaxed) == 0;
        Ok(Jinja::from(if is_first { "" } else { &self.separator }))
    }
}

/// Jinja's `cycler`, which returns its items in turn.
#[derive(Debug)]
pub(crate) struct Cycler {
    items: Vec<Jinja>,
    position: AtomicUsize,
}

impl Cycler {
    pub(crate) fn new_value(items: Vec<Jinja>) -> Result<Jinja, Error> {
        if items.is_empty() {
            return Err(unsupported_error("`cycler` requires at least one item"));
        }
        Ok(Jinja::from_object(Self { items, position: AtomicUsize::new(0) }))
    }

    fn item(&self, position: usize) -> Option<Jinja> {
        self.items.get(position % self.items.len()).cloned()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        (key.as_str() == Some("current")).then(|| self.item(self.position.load(Ordering::Relaxed))).flatten()
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, method: &str, args: &[Jinja]) -> Result<Jinja, Error> {
        let () = from_args(args)?;
        match method {
            "next" => Ok(self.item(self.position.fetch_add(1, Ordering::Relaxed)).unwrap_or_default()),
            "reset" => {
                self.position.store(0, Ordering::Relaxed);
                Ok(Jinja::from(()))
            }
            _ => Err(unsupported_error(format!("a cycler has no method `{method}`"))),
        }
    }
}
