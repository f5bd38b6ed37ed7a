//! Values in the order of their first appearance.

/// Values under what they have in common, in the order of first appearance.
pub fn grouped<K: PartialEq, V>(values: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in values {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, all)) => all.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

/// Each value once, in the order of first appearance.
pub fn distinct<'a, T: Clone + PartialEq + 'a>(values: impl IntoIterator<Item = &'a T>) -> Vec<T> {
    let mut all: Vec<T> = Vec::new();
    for value in values {
        if !all.contains(value) {
            all.push(value.clone());
        }
    }
    all
}
