//! Facts that follow from two facts: Anna is a baker and a baker uses an oven, so Anna uses an oven.

use super::relation::{
    BODY, CLASS, CLIMATE, COLOUR, CROP, DIET, HOME, JOB, MATERIAL, PET, PRODUCT, PROPERTY, REGION, SOUND, TOOL,
    WORKPLACE,
};

/// The value of `first` is the subject of `second`. Slots as in a [`Relation`](super::relation::Relation).
#[derive(Debug)]
pub(super) struct Hop {
    pub(super) first: usize,
    pub(super) second: usize,
    pub(super) statements: &'static [&'static str],
    pub(super) questions: &'static [&'static str],
}

pub(super) static HOPS: [Hop; 12] = [
    Hop {
        first: JOB,
        second: TOOL,
        statements: &["at work {s} uses {v}", "{p} tool is {v}", "every day {s} takes up {v}"],
        questions: &["Which tool does {n} use at work?", "What does {n} need for the job?", "What is the tool of {n}?"],
    },
    Hop {
        first: JOB,
        second: WORKPLACE,
        statements: &["{s} goes to work in {v}", "by day {s} is in {v}", "{p} workplace is {v}"],
        questions: &["Where does {n} work?", "Where is {n} by day?", "What is the workplace of {n}?"],
    },
    Hop {
        first: HOME,
        second: REGION,
        statements: &["{s} is from {v}", "{p} region is {v}", "{s} has never left {v}"],
        questions: &["Which region is {n} from?", "In which region does {n} live?", "What is the region of {n}?"],
    },
    Hop {
        first: HOME,
        second: PRODUCT,
        statements: &["{p} neighbours make {v}", "where {s} lives, people sell {v}", "{p} town makes {v}"],
        questions: &[
            "What is made in the town of {n}?",
            "What do the neighbours of {n} make?",
            "What do people sell where {n} lives?",
        ],
    },
    Hop {
        first: PET,
        second: COLOUR,
        statements: &["{p} pet is {v}", "the colour of {p} pet is {v}", "{s} keeps an animal that is {v}"],
        questions: &[
            "What colour is the pet of {n}?",
            "What is the colour of the pet that {n} keeps?",
            "Which colour does the pet of {n} have?",
        ],
    },
    Hop {
        first: PET,
        second: SOUND,
        statements: &["{p} pet wakes the house with {v}", "{s} often hears {v}", "{p} pet makes {v}"],
        questions: &[
            "What sound does the pet of {n} make?",
            "What sound does {n} hear at home?",
            "What is the call of the pet of {n}?",
        ],
    },
    Hop {
        first: PET,
        second: DIET,
        statements: &["{p} pet eats {v}", "{s} feeds {v} to the pet", "{s} buys {v} for the pet"],
        questions: &[
            "What does the pet of {n} eat?",
            "What does {n} buy for the pet?",
            "What food does {n} give to the pet?",
        ],
    },
    Hop {
        first: CLASS,
        second: BODY,
        statements: &["{s} has {v}", "{p} body has {v}", "look at {n} and you will see {v}"],
        questions: &["What does the body of {n} have?", "What will you see on {n}?", "What does {n} have?"],
    },
    Hop {
        first: MATERIAL,
        second: PROPERTY,
        statements: &["{s} {b}", "try {n} and you will see that {v}", "note of {n} that {v}"],
        questions: &["What is true of {n}?", "What will you see if you try {n}?", "What should you know about {n}?"],
    },
    Hop {
        first: REGION,
        second: CLIMATE,
        statements: &["the air in {n} is {v}", "{s} is {v}", "most days in {n} are {v}"],
        questions: &["How are most days in {n}?", "What is the climate of {n}?", "How is the air in {n}?"],
    },
    Hop {
        first: REGION,
        second: CROP,
        statements: &["the fields near {n} give {v}", "around {n} farmers grow {v}", "carts bring {v} to {n}"],
        questions: &[
            "What do farmers grow around {n}?",
            "What do the fields near {n} give?",
            "What do carts bring to {n}?",
        ],
    },
    Hop {
        first: HOME,
        second: super::relation::LANDMARK,
        statements: &["from the window {s} can see {v}", "{s} often walks to {v}", "{p} town has {v}"],
        questions: &[
            "What can {n} see from the window?",
            "To what does {n} often walk?",
            "What stands in the town of {n}?",
        ],
    },
];
