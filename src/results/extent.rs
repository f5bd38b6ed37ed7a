//! How much a backbone reads of what it is scored on, whatever the variant.

use crate::tasks::Task;

/// Of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextExtent {
    /// Windows that are scored, and windows that there are.
    pub windows: usize,
    pub all: usize,
    /// Of the text that the predicted tokens stand for.
    pub bytes: usize,
}

/// Of a task.
#[derive(Debug, Clone)]
pub struct TaskExtent {
    pub task: &'static Task,
    /// Documents scored, and documents in the files.
    pub documents: usize,
    pub original: usize,
    /// Whether all documents of the published split are scored.
    pub whole: bool,
}

/// Of a task by its definition.
#[derive(Debug, Clone)]
pub struct DefinedExtent {
    /// Documents scored, and documents of the split.
    pub documents: usize,
    pub original: usize,
}
