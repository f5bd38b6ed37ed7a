//! The micro-world's corpora as documents to train on.

use super::corpus::Register;
use crate::world::{self, World, WorldSplit};

/// Sentences of the newswire that make one document.
const SENTENCES: usize = 12;

/// All registers of the world of a seed.
pub fn registers(seed: u64) -> Vec<Register> {
    let world = World::new(seed);
    let part = |register: world::Register, part| {
        let rows = world.rows(register, part);
        // Rows are joined as the perplexity protocol joins them, so that the backbone knows such text.
        match register {
            world::Register::Web => rows,
            world::Register::Wiki => articles(&rows),
            world::Register::News => rows.chunks(SENTENCES).map(|rows| rows.join("\n\n")).collect(),
        }
    };
    world::Register::ALL
        .into_iter()
        .map(|register| Register {
            name: register.name().into(),
            train: part(register, WorldSplit::Train),
            validation: part(register, WorldSplit::Validation),
        })
        .collect()
}

/// An article begins with its title, ` = … = `; a section's has two signs.
fn articles(rows: &[String]) -> Vec<String> {
    let begins = |row: &str| row.starts_with(" = ") && !row.starts_with(" = = ");
    let mut articles: Vec<Vec<&str>> = Vec::new();
    for row in rows {
        if begins(row) || articles.is_empty() {
            articles.push(Vec::new());
        }
        if let Some(article) = articles.last_mut() {
            article.push(row);
        }
    }
    let texts = articles.into_iter().map(|rows| rows.join("\n\n"));
    // Before the first title stands an empty row.
    texts.filter(|text| !text.trim().is_empty()).collect()
}
