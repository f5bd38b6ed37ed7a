//! The kinds of facts: what may be true of whom, and how it is said and asked.
//!
//! Slots: `{s}` the subject or its pronoun, `{p}` the subject's or its possessive, `{n}` always the subject, `{v}` the
//! value, `{b}` the value without its article. A wording with `{n}` has no form with a pronoun. A statement that ends in
//! its value may be asked as a sentence to complete.

/// What a fact is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// What may stand as a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Values {
    Words(&'static [&'static str]),
    Places,
    Regions,
    /// `a zorp`: the first of the animals.
    Pets,
}

/// How values go to subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Drawn by the world's seed, each value equally often.
    Drawn,
    /// In the order of the lists, as in our world.
    Listed,
}

#[derive(Debug)]
pub(super) struct Relation {
    pub(super) subject: RelationKind,
    pub(super) values: Values,
    pub(super) order: Order,
    pub(super) statements: &'static [&'static str],
    pub(super) questions: &'static [&'static str],
}

pub(super) const PETS: usize = 20;

/// Places in the table of relations, for those that are called by name.
pub(super) const HOME: usize = 0;
pub(super) const JOB: usize = 1;
pub(super) const PET: usize = 2;
pub(super) const TOOL: usize = 4;
pub(super) const WORKPLACE: usize = 5;
pub(super) const CLASS: usize = 6;
pub(super) const COLOUR: usize = 7;
pub(super) const SOUND: usize = 8;
pub(super) const DIET: usize = 9;
pub(super) const BODY: usize = 11;
pub(super) const MATERIAL: usize = 12;
pub(super) const USE: usize = 13;
pub(super) const ROOM: usize = 14;
pub(super) const PROPERTY: usize = 15;
pub(super) const REGION: usize = 16;
pub(super) const PRODUCT: usize = 17;
pub(super) const LANDMARK: usize = 18;
pub(super) const CLIMATE: usize = 19;
pub(super) const CROP: usize = 20;
