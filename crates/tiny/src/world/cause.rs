//! What leads to what.
//!
//! Slots: `{s}` a person or the pronoun, `{p}` possessive, `{o}` object form.

/// Cause and effect.
pub(super) static CAUSES: [(&str, &str); 60] = [
    ("{s} left the window open", "the room got cold"),
    ("the rain fell all night", "the street was wet"),
    ("{s} skipped breakfast", "{s} was hungry at noon"),
    ("{s} did not water the roses", "the roses died"),
    ("the alarm was broken", "{s} woke up too late"),
    ("{s} ran up the hill", "{s} was out of breath"),
    ("the ice on the pond was thin", "the skaters fell into the water"),
    ("{s} dropped the cup", "there were sharp pieces on the floor"),
    ("the baby was hungry", "the baby cried"),
    ("{s} told a joke", "everyone laughed"),
    ("the sun shone on the snow", "the snow melted"),
    ("{s} left the milk in the heat", "the milk turned sour"),
    ("{s} touched the hot stove", "{s} burned a finger"),
    ("the power failed", "the lights went out"),
    ("{s} studied hard", "{s} passed the exam"),
    ("{s} planted seeds", "green shoots came up in the garden"),
    ("the wind was strong", "a tree fell over the road"),
    ("{s} ate too many sweets", "{s} had a bad tooth"),
    ("the dog heard a thief", "the dog barked loudly"),
    ("{s} put salt in the coffee", "the coffee tasted awful"),
    ("{s} lost the key", "{s} could not open the door"),
    ("the bridge was closed", "the bus took a longer way"),
    ("{s} worked all night", "{s} fell asleep at the desk"),
    ("{s} did not pay the bill", "an angry letter came"),
    ("the tyre was flat", "{s} pushed the bike home"),
    ("the shop was closed", "{s} came back with an empty bag"),
    ("{s} won the prize", "{s} smiled all day"),
    ("the river rose", "the fields were under water"),
    ("{s} sang too loudly", "the neighbours complained"),
    ("a spark fell on the hay", "the barn burned down"),
    ("{s} cut onions", "{p} eyes filled with tears"),
    ("{s} stepped on the cat", "the cat scratched {o}"),
    ("the film was boring", "many people left early"),
    ("{s} mixed blue and yellow", "the paint became green"),
    ("{s} wore thin shoes", "{p} feet froze"),
    ("the soup was too hot", "{s} blew on the spoon"),
    ("{s} kicked the ball at the house", "a pane of glass cracked"),
    ("{s} forgot the birthday of a friend", "the friend was hurt"),
    ("the fog was thick", "the ship hit a rock"),
    ("{s} read a ghost story", "{s} was afraid of the dark"),
    ("{s} saved money for years", "{s} bought a boat"),
    ("the bees were angry", "{s} was stung"),
    ("{s} often told lies", "nobody believed {o}"),
    ("the battery was empty", "the radio fell silent"),
    ("{s} oiled the hinge", "the door stopped making noise"),
    ("{s} shook the tree", "apples fell down"),
    ("the cake stayed in the oven too long", "the cake was black"),
    ("{s} trained every day", "{s} grew strong"),
    ("{s} spilled ink on the shirt", "the shirt had a stain"),
    ("the train was late", "{s} missed the meeting"),
    ("the well was dry", "the village had no water"),
    ("{s} mowed the lawn", "the grass was short"),
    ("{s} opened the cage", "the birds flew off"),
    ("the road was icy", "the car slid into a ditch"),
    ("{s} heard sad news", "{s} began to weep"),
    ("a stone hit the pond", "rings spread over the water"),
    ("{s} added yeast to the dough", "the dough rose"),
    ("{s} forgot to close the tap", "the bath flowed over"),
    ("{s} caught a cold", "{s} sneezed all week"),
    ("clouds hid the moon", "the night was dark"),
];

/// Who did what to whom, and why: `{x}` and `{y}`; then a reason that fits only the first, and one that fits only the
/// second.
#[derive(Debug)]
pub(super) struct Schema {
    pub(super) people: bool,
    pub(super) event: &'static str,
    /// What goes before the blank: a link and perhaps an article.
    pub(super) link: &'static str,
    pub(super) first: &'static str,
    pub(super) second: &'static str,
}

const fn people(event: &'static str, first: &'static str, second: &'static str) -> Schema {
    Schema { people: true, event, link: "because ", first, second }
}

const fn things(event: &'static str, first: &'static str, second: &'static str) -> Schema {
    Schema { people: false, event, link: "because the ", first, second }
}

pub(super) static SCHEMAS: [Schema; 20] = [
    people("{x} thanked {y}", "was grateful", "had been kind"),
    people("{x} lent money to {y}", "was rich", "was poor"),
    people("{x} asked {y} for advice", "did not know what to do", "was wise"),
    people("{x} lost the race against {y}", "was slow", "was fast"),
    people("{x} could not hear {y}", "was deaf", "spoke too softly"),
    people("{x} carried {y} home", "was strong", "was hurt"),
    people("{x} was afraid of {y}", "was shy", "was angry"),
    people("{x} sold the house to {y}", "was moving away", "needed a place to live"),
    people("{x} taught {y} to swim", "was a good swimmer", "could not swim"),
    people("{x} sat with {y} in the clinic", "was worried", "was ill"),
    people("{x} gave {y} a coat", "had two coats", "felt cold"),
    people("{x} waited for {y}", "was early", "was late"),
    people("{x} paid {y}", "owed money", "had done the work"),
    people("{x} looked up at {y}", "was short", "was tall"),
    people("{x} hid from {y}", "had done wrong", "was in a bad mood"),
    things("the {x} did not fit into the {y}", "was too large", "was too small"),
    things("the {x} broke the {y}", "was too heavy", "was too weak"),
    things("nobody saw the {x} behind the {y}", "was too low", "was too high"),
    things("people bought the {x} and not the {y}", "was cheap", "cost too much"),
    things("the {x} was lifted more easily than the {y}", "was light", "was full of stones"),
];
