//! What a definition's file says, as a value.

use ghostlab_core::error::Result;

use crate::equivalent;
use crate::value::Value;
use crate::yaml::{Node, Tree};

/// All that a node says, hooks that are no more than one of our keys as that key, and `kept` as `keep_rows`.
pub(crate) fn source(node: &Node, kept: &[(String, Vec<Value>)]) -> Result<Value> {
    let mut pairs = Vec::new();
    for (key, node) in node.pairs() {
        match key.as_text() {
            Some("process_docs" | "keep_rows") => {}
            Some("metric_list") => pairs.push((key.clone(), metrics(node)?)),
            _ => pairs.push((key.clone(), node.plain()?)),
        }
    }
    if !kept.is_empty() {
        let columns = kept.iter().map(|(column, values)| (Value::from(&**column), Value::List(values.clone())));
        pairs.push((Value::from("keep_rows"), Value::Map(columns.collect())));
    }
    Ok(Value::Map(pairs))
}

fn metrics(node: &Node) -> Result<Value> {
    let Tree::List(items) = &node.tree else { return node.plain() };
    let item = |item: &Node| {
        let pairs = item.pairs().iter().map(|(key, value)| {
            let same = matches!(&value.tree, Tree::Hook(hook) if equivalent::is_weighted_f1(hook, &value.place));
            Ok((key.clone(), if same { Value::from("weighted_f1") } else { value.plain()? }))
        });
        Ok(Value::Map(pairs.collect::<Result<_>>()?))
    };
    Ok(Value::List(items.iter().map(item).collect::<Result<_>>()?))
}
