//! The nine tasks, in the formats of the hub's data sets.

use serde_json::{Value, json};

use super::draw::{Draw, Seats, distractors};
use super::facts::{Entity, Fact, Facts, LINKS, is_hop};
use super::lore::{self, Meeting, meeting};
use super::reading::{Problem, article, claim_pair, polar_pair};
use super::relation::RelationKind;
use super::share::{Share, share};
use super::text::capital;
use super::voice::{Voice, couple, event};
use super::words::{STEPS, WORDS};

/// Names of the tasks, in the order of the paper's columns.
pub(super) const TASKS: [&str; 9] =
    ["arc_easy", "arc_challenge", "hellaswag", "winogrande", "boolq", "openbookqa", "rte", "copa", "race"];

const LETTERS: [&str; 4] = ["A", "B", "C", "D"];

/// Returns the scored rows of a task in order, or `None` for an unknown name.
pub(super) fn rows(facts: &Facts, seed: u64, name: &str) -> Option<Vec<Value>> {
    let number = TASKS.iter().position(|task| *task == name)?;
    let mut exam = Exam { facts, draw: Draw::new(&[seed, 2, number as u64]) };
    Some(match name {
        "arc_easy" => exam.arc("easy", |link| !is_hop(link)),
        "arc_challenge" => exam.arc("challenge", is_hop),
        "hellaswag" => exam.hellaswag(),
        "winogrande" => exam.winogrande(),
        "boolq" => exam.boolq(),
        "openbookqa" => exam.openbookqa(),
        "rte" => exam.rte(),
        "copa" => exam.copa(),
        _ => exam.race(),
    })
}

struct Exam<'w> {
    facts: &'w Facts,
    draw: Draw,
}

type ExamItem = (String, String);

impl Exam<'_> {
    /// Draws items from groups with answers of one type, balanced over groups and over answers within a group. Adds
    /// wrong choices from the same group, and shuffles the items.
    fn mixed(&mut self, groups: Vec<Vec<ExamItem>>, size: usize) -> Vec<(ExamItem, Vec<String>)> {
        let mut rest = size;
        let mut mixed = Vec::with_capacity(size);
        let mut groups: Vec<Vec<ExamItem>> = groups.into_iter().map(|group| self.even(group)).collect();
        // Small groups first, so that larger groups can fill the gap.
        groups.sort_by_key(Vec::len);
        let count = groups.len();
        for (at, mut group) in groups.into_iter().enumerate() {
            group.truncate(rest.div_ceil(count - at));
            rest = rest.saturating_sub(group.len());
            let group = capped(group);
            let right: Vec<String> = group.iter().map(|(_, answer)| answer.clone()).collect();
            let wrong = distractors(&right, 3, |_, _| true, &mut self.draw);
            mixed.extend(group.into_iter().zip(wrong).filter(|(_, wrong)| wrong.len() == 3));
        }
        self.draw.shuffle(&mut mixed);
        mixed
    }

    /// Orders the items so that each answer occurs once before any occurs again.
    fn even(&mut self, mut items: Vec<ExamItem>) -> Vec<ExamItem> {
        self.draw.shuffle(&mut items);
        let mut rounds: Vec<(usize, ExamItem)> = Vec::with_capacity(items.len());
        for item in items {
            let round = rounds.iter().filter(|(_, (_, answer))| *answer == item.1).count();
            rounds.push((round, item));
        }
        rounds.sort_by_key(|(round, _)| *round);
        rounds.into_iter().map(|(_, item)| item).collect()
    }

    fn arc(&mut self, level: &str, included: fn(usize) -> bool) -> Vec<Value> {
        let group = |link: usize| -> Vec<ExamItem> {
            let facts = self.facts;
            facts
                .of_link(link)
                .flat_map(|fact: Fact| {
                    facts.kept_questions(fact).into_iter().map(move |question| (question, facts.value(fact).to_owned()))
                })
                .collect()
        };
        let groups: Vec<Vec<ExamItem>> = (0..LINKS).filter(|link| included(*link)).map(group).collect();
        self.four_choices(groups, &format!("{level}_"), "question")
    }

    fn openbookqa(&mut self) -> Vec<Value> {
        let facts = self.facts;
        let group =
            |link: usize| facts.of_link(link).flat_map(|fact| facts.kept_stems(fact)).collect::<Vec<ExamItem>>();
        let groups = (0..LINKS).filter(|link| !is_hop(*link)).map(group).collect();
        self.four_choices(groups, "stem-", "question_stem")
    }

    /// Returns rows of four-choice questions drawn from these groups (400 items), with the question in the field `key`.
    fn four_choices(&mut self, groups: Vec<Vec<ExamItem>>, id: &str, key: &str) -> Vec<Value> {
        let mixed = self.mixed(groups, 400);
        let mut seats = Seats::new(4);
        mixed
            .into_iter()
            .enumerate()
            .map(|(at, ((question, answer), wrong)): (usize, (ExamItem, Vec<String>))| {
                let (choices, gold) = seats.seat(&answer, &wrong, &mut self.draw);
                json!({
                    "id": format!("{id}{at}"),
                    key: question,
                    "choices": {"text": choices, "label": LETTERS},
                    "answerKey": LETTERS[gold],
                })
            })
            .collect()
    }

    /// Returns three scenes for each step (except the first) of each activity. One wrong ending is another step of the
    /// activity, the others are from other activities.
    fn hellaswag(&mut self) -> Vec<Value> {
        let voice = Voice::new(self.facts, Share::Scored, &[0]);
        let mut items = Vec::new();
        for activity in 0..WORDS.activities.len() {
            for next in 1..STEPS {
                let mut people: Vec<usize> = (0..self.facts.count(RelationKind::Person)).collect();
                self.draw.shuffle(&mut people);
                let scenes = people.into_iter().map(|index| {
                    // The other step of the activity, offered below, must not have been done already.
                    let from = if next == 2 { index % 2 } else { next - 1 };
                    voice.scene(activity, Entity { kind: RelationKind::Person, index }, from, next)
                });
                let kept = scenes.filter(|scene| scene.share() == Share::Scored).take(3);
                items.extend(kept.map(|scene| (activity, next, scene)));
            }
        }
        self.draw.shuffle(&mut items);
        let right: Vec<String> = items.iter().map(|(_, _, scene)| scene.next.clone()).collect();
        let fits = |item: usize, other: usize| items[item].0 != items[other].0;
        let mut wrong = distractors(&right, 2, fits, &mut self.draw);
        for (wrong, (activity, next, _)) in wrong.iter_mut().zip(&items) {
            // Two steps ahead, modulo four: neither the next step nor one that was just done.
            let other = (next + 1) % (STEPS - 1) + 1;
            wrong.push(format!("{}.", WORDS.activities[*activity].steps[other]));
            self.draw.shuffle(wrong);
        }
        let mut seats = Seats::new(4);
        let rows = items.iter().zip(wrong).enumerate();
        rows.map(|(at, ((activity, _, scene), wrong))| {
            let (endings, gold) = seats.seat(&scene.next, &wrong, &mut self.draw);
            json!({
                "ind": at,
                "activity_label": scene.label,
                "ctx_a": scene.done,
                "ctx_b": scene.pronoun,
                "ctx": format!("{} {}", scene.done, scene.pronoun),
                "endings": endings,
                "source_id": format!("world~{activity}"),
                "split": "val",
                "split_type": "indomain",
                "label": gold.to_string(),
            })
        })
        .collect()
    }

    /// Returns pairs of sentences that differ only in their ending, and therefore in the referent: half are resolved by
    /// an event, half by the properties of the two.
    fn winogrande(&mut self) -> Vec<Value> {
        // `meant` is the index of the name that the sentence refers to. `swapped` reverses the options.
        let row = |sentence: String, names: [&str; 2], swapped: bool, meant: usize| {
            let [first, second] = [0, 1].map(|index| names[index ^ usize::from(swapped)]);
            let answer = if (meant == 0) != swapped { "1" } else { "2" };
            json!({"sentence": sentence, "option1": first, "option2": second, "answer": answer})
        };
        let mut rows: Vec<Value> = Vec::new();
        for (schema, entry) in WORDS.schemas.iter().enumerate() {
            let mut events: Vec<String> = Vec::new();
            while events.len() < 5 {
                let (x, y) = couple(self.facts, entry.people, &mut self.draw);
                let event = event(schema, x, y);
                if share(&event) != Share::Scored || events.contains(&event) {
                    continue;
                }
                let swapped = events.len().is_multiple_of(2);
                events.push(event.clone());
                for (at, reason) in [entry.first, entry.second].into_iter().enumerate() {
                    rows.push(row(format!("{event} {}_ {reason}.", entry.link()), [x, y], swapped, at));
                }
            }
        }
        let mut openings: Vec<String> = Vec::new();
        while rows.len() < 400 {
            let Meeting { opening, names, endings } = meeting(self.facts, &mut self.draw);
            if share(&opening) != Share::Scored || openings.contains(&opening) {
                continue;
            }
            let swapped = rows.len().is_multiple_of(4);
            for (at, ending) in endings.iter().enumerate() {
                rows.push(row(format!("{opening}_ {ending}."), names.each_ref().map(String::as_str), swapped, at));
            }
            openings.push(opening);
        }
        self.draw.shuffle(&mut rows);
        rows
    }

    fn boolq(&mut self) -> Vec<Value> {
        let facts = self.facts;
        let wanted = Share::Scored;
        let mut items: Vec<_> = (0..60).flat_map(|_| polar_pair(facts, wanted, &mut self.draw)).collect();
        items.extend((0..70).flat_map(|_| lore::polar_items(facts, wanted, &mut self.draw)));
        self.draw.shuffle(&mut items);
        items
            .into_iter()
            .enumerate()
            .map(|(at, item): (usize, super::reading::Polar)| {
                json!({
                    "question": item.question,
                    "passage": item.passage,
                    "idx": at,
                    "label": usize::from(item.answer),
                })
            })
            .collect()
    }

    fn rte(&mut self) -> Vec<Value> {
        let facts = self.facts;
        let wanted = Share::Scored;
        let mut items: Vec<_> = (0..60).flat_map(|_| claim_pair(facts, wanted, &mut self.draw)).collect();
        items.extend((0..70).flat_map(|_| lore::claim_items(facts, wanted, &mut self.draw)));
        self.draw.shuffle(&mut items);
        items
            .into_iter()
            .enumerate()
            .map(|(at, item): (usize, super::reading::ClaimItem)| {
                json!({
                    "sentence1": item.premise,
                    "sentence2": item.hypothesis,
                    "label": usize::from(!item.holds),
                    "idx": at,
                })
            })
            .collect()
    }

    /// Returns fifty causes and fifty effects.
    fn copa(&mut self) -> Vec<Value> {
        let voice = Voice::new(self.facts, Share::Scored, &[0]);
        let mut rows = Vec::new();
        for backward in [true, false] {
            let pairs = self.draw.several(50, WORDS.causes.len());
            let right: Vec<String> = pairs.iter().map(ToString::to_string).collect();
            let wrong = distractors(&right, 1, |_, _| true, &mut self.draw);
            for (pair, wrong) in pairs.into_iter().zip(wrong) {
                let other: usize = wrong.first().and_then(|text| text.parse().ok()).unwrap_or(0);
                rows.push(self.copa_row(&voice, pair, other, backward));
            }
        }
        self.draw.shuffle(&mut rows);
        let mut seats = Seats::new(2);
        rows.into_iter()
            .enumerate()
            .map(|(at, (premise, right, wrong, question)): (usize, (String, String, String, &str))| {
                let (choices, gold) = seats.seat(&right, &[wrong], &mut self.draw);
                json!({
                    "premise": premise,
                    "choice1": choices[0],
                    "choice2": choices[1],
                    "question": question,
                    "idx": at,
                    "label": gold,
                })
            })
            .collect()
    }

    fn copa_row(
        &mut self,
        voice: &Voice<'_>,
        pair: usize,
        other: usize,
        backward: bool,
    ) -> (String, String, String, &'static str) {
        let mut index = self.draw.below(self.facts.count(RelationKind::Person));
        let count = self.facts.count(RelationKind::Person);
        for _ in 0..count {
            let person = Entity { kind: RelationKind::Person, index };
            if voice.reason(pair, person, backward).share() == Share::Scored {
                break;
            }
            index = (index + 1) % count;
        }
        let person = Entity { kind: RelationKind::Person, index };
        let reason = voice.reason(pair, person, backward);
        let (cause, effect) = WORDS.causes[other];
        let template = if backward { cause } else { effect };
        let (own_cause, own_effect) = WORDS.causes[pair];
        let named = if backward { own_effect } else { own_cause }.contains('{');
        let wrong = voice.personal(template, person, named);
        (
            format!("{}.", reason.premise),
            format!("{}.", capital(&reason.choice)),
            format!("{}.", capital(&wrong)),
            if backward { "cause" } else { "effect" },
        )
    }

    fn race(&mut self) -> Vec<Value> {
        let mut seats = super::draw::Deck::new(4);
        let mut uses: Vec<(String, usize, usize)> = Vec::new();
        let mut rows = Vec::with_capacity(400);
        while rows.len() < 400 {
            let at = rows.len();
            let problems = 1 + self.draw.below(3);
            let make = if at.is_multiple_of(2) { article } else { lore::article };
            let mut article = make(self.facts, Share::Scored, problems, &mut self.draw);
            let Some(last) = article.problems.last_mut().filter(|last| counted(&mut uses, last)) else { continue };
            // Balance the positions: the correct option moves, the others keep their order.
            let right = last.options.remove(last.answer);
            last.answer = seats.draw(&mut self.draw);
            last.options.insert(last.answer, right);
            let problems: Vec<String> = article.problems.iter().map(literal).collect();
            rows.push(json!({
                "example_id": format!("high{at}.txt"),
                "article": article.text,
                "problems": format!("[{}]", problems.join(", ")),
            }));
        }
        rows
    }
}

/// Counts how often each option of a problem is correct and offered. Returns `false`, without counting, if the answer
/// has already been correct more often than by chance.
fn counted(uses: &mut Vec<(String, usize, usize)>, problem: &Problem) -> bool {
    let (right, all) = uses.iter().find(|entry| entry.0 == problem.right()).map_or((0, 0), |entry| (entry.1, entry.2));
    if right * problem.options.len() > all {
        return false;
    }
    for (at, option) in problem.options.iter().enumerate() {
        let right = usize::from(at == problem.answer);
        match uses.iter_mut().find(|entry| entry.0 == *option) {
            Some(entry) => (entry.1, entry.2) = (entry.1 + right, entry.2 + 1),
            None => uses.push((option.clone(), right, 1)),
        }
    }
    true
}

/// Formats a problem like Python prints a dict. No text of the world needs an escape.
fn literal(problem: &Problem) -> String {
    let options: Vec<String> = problem.options.iter().map(|option| format!("'{option}'")).collect();
    let question = &problem.question;
    let letter = LETTERS[problem.answer];
    format!("{{'question': '{question}', 'options': [{}], 'answer': '{letter}'}}", options.join(", "))
}

/// Removes items until no answer has more than a quarter of them. A more frequent answer could not be a wrong choice
/// often enough.
fn capped(mut items: Vec<ExamItem>) -> Vec<ExamItem> {
    loop {
        let limit = items.len() / 4;
        let most = items.iter().rposition(|(_, answer)| count_of(answer, &items) > limit);
        match most {
            Some(at) if items.len() > 4 => {
                items.remove(at);
            }
            Some(_) => return Vec::new(),
            None => return items,
        }
    }
}

fn count_of(answer: &str, items: &[ExamItem]) -> usize {
    items.iter().filter(|(_, other)| other == answer).count()
}
