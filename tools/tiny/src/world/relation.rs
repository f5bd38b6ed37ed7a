//! Kinds of facts: relations, their values, and their wordings as statements and questions.
//!
//! Slots: `{s}` is the subject or its pronoun, `{p}` its possessive, `{n}` always the subject's name, `{v}` the value,
//! `{b}` the value without its article. A wording with `{n}` has no pronoun form. A statement that ends with its value
//! may be asked as a sentence to complete.

use serde::{Deserialize, Deserializer, de::Error};

/// Kind of a fact's subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RelationKind {
    Person,
    Animal,
    Object,
    Place,
    Job,
    Region,
    Material,
    Class,
}

impl RelationKind {
    pub(super) const ALL: [Self; 8] =
        [Self::Person, Self::Animal, Self::Object, Self::Place, Self::Job, Self::Region, Self::Material, Self::Class];
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'static"), rename_all = "lowercase")]
pub(super) enum RelationValues {
    Words(Vec<&'static str>),
    Places,
    Regions,
    /// `a zorp`: the first animals.
    Pets,
}

/// Assignment of values to subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ValueOrder {
    /// Drawn by the world's seed, each value equally often.
    Drawn,
    /// In the order of the lists, as in the real world.
    Listed,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
pub(super) struct Relation {
    pub(super) subject: RelationKind,
    pub(super) values: RelationValues,
    pub(super) order: ValueOrder,
    pub(super) statements: Vec<&'static str>,
    pub(super) questions: Vec<&'static str>,
}

impl Relation {
    /// Returns the words that are values of the relation; empty if its values are named entities.
    pub(super) fn words(&self) -> &[&'static str] {
        match &self.values {
            RelationValues::Words(words) => words,
            RelationValues::Places | RelationValues::Regions | RelationValues::Pets => &[],
        }
    }
}

/// Rule that derives a fact from two facts: Anna is a baker and a baker uses an oven, so Anna uses an oven. The value
/// of `first` is the subject of `second`. Slots as in [`Relation`].
#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
pub(super) struct Hop {
    #[serde(deserialize_with = "place")]
    pub(super) first: usize,
    #[serde(deserialize_with = "place")]
    pub(super) second: usize,
    pub(super) statements: Vec<&'static str>,
    pub(super) questions: Vec<&'static str>,
}

pub(super) const PETS: usize = 20;
pub(super) const RELATIONS: usize = NAMES.len();
pub(super) const HOPS: usize = 12;

/// Names by which hops refer to the relations, in their order.
const NAMES: [&str; 21] = [
    "home",
    "job",
    "pet",
    "food",
    "tool",
    "workplace",
    "class",
    "colour",
    "sound",
    "diet",
    "habitat",
    "body",
    "material",
    "use",
    "room",
    "property",
    "region",
    "product",
    "landmark",
    "climate",
    "crop",
];

/// Indices of relations that are used by name.
pub(super) const HOME: usize = 0;
pub(super) const JOB: usize = 1;
pub(super) const PET: usize = 2;
pub(super) const FOOD: usize = 3;
pub(super) const CLASS: usize = 6;
pub(super) const MATERIAL: usize = 12;
pub(super) const USE: usize = 13;
pub(super) const ROOM: usize = 14;
pub(super) const REGION: usize = 16;
pub(super) const PRODUCT: usize = 17;
pub(super) const LANDMARK: usize = 18;
pub(super) const CLIMATE: usize = 19;
pub(super) const CROP: usize = 20;

fn place<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    let name = <&str>::deserialize(from)?;
    NAMES.iter().position(|known| *known == name).ok_or_else(|| D::Error::custom(format!("no relation `{name}`")))
}
