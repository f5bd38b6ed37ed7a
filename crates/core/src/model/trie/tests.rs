use super::*;
use crate::model::operator::Operator;
use crate::model::sublayer::Sublayer;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// A model that counts how often each step runs. Both its state and its output are the list of executed steps.
#[derive(Default)]
struct CountingModel {
    runs: RefCell<HashMap<String, usize>>,
}

impl CountingModel {
    fn count(&self, step: &Step) {
        *self.runs.borrow_mut().entry(format!("{step:?}")).or_default() += 1;
    }
}

impl Model for CountingModel {
    type Batch = ();
    type Residual = Vec<Step>;
    type Output = Vec<Step>;

    fn begin(&self, (): &()) -> Result<Vec<Step>> {
        self.count(&Step::Embed);
        Ok(vec![Step::Embed])
    }

    fn advance(&self, (): &(), step: &Step, state: &Vec<Step>) -> Result<Vec<Step>> {
        self.count(step);
        Ok([state.as_slice(), std::slice::from_ref(step)].concat())
    }

    fn finish(&self, batch: &(), state: &Vec<Step>) -> Result<Vec<Step>> {
        self.advance(batch, &Step::Head, state)
    }
}

/// Returns the dense program with 6 layers, and four programs without layers 2 and 3. Two of them have the same
/// operator.
fn programs() -> Vec<Program> {
    let a = Operator::diagonal(vec![1.0]).unwrap();
    let b = Operator::diagonal(vec![2.0]).unwrap();
    vec![
        Program::dense(6),
        pruned_program(None),
        pruned_program(Some(&a)),
        pruned_program(Some(&b)),
        pruned_program(Some(&a)),
    ]
}

fn pruned_program(operator: Option<&Arc<Operator>>) -> Program {
    Program::pruned(6, &[2, 3], |_| operator.cloned())
}

#[test]
fn trie_runs_shared_steps_once() {
    let model = CountingModel::default();
    Trie::new(&programs()).run(&model, &(), &mut ()).unwrap();
    let runs = model.runs.into_inner();
    assert_eq!((runs["Embed"], runs["Attention(0)"], runs["Mlp(1)"]), (1, 1, 1));
    assert_eq!((runs["Attention(2)"], runs["Mlp(3)"]), (1, 1), "only the dense program has the removed layers");
    assert_eq!(
        (runs["Attention(4)"], runs["Mlp(5)"], runs["Head"]),
        (4, 4, 4),
        "expected one run for each of the four distinct programs"
    );
}

#[test]
fn trie_runs_exactly_the_steps_of_each_program() {
    let programs = programs();
    let outputs = Trie::new(&programs).run(&CountingModel::default(), &(), &mut ()).unwrap();
    for (program, output) in programs.iter().zip(outputs) {
        assert_eq!(program.0, output.unwrap());
    }
}

/// A model that records which weights the steps need, in execution order, and the maximum number of states kept.
#[derive(Default)]
struct WeightOrderModel {
    weights: RefCell<Vec<usize>>,
    held: Rc<()>,
    max_states: RefCell<usize>,
}

impl Model for WeightOrderModel {
    type Batch = ();
    type Residual = Rc<()>;
    type Output = ();

    fn begin(&self, (): &()) -> Result<Rc<()>> {
        Ok(Rc::clone(&self.held))
    }

    fn advance(&self, (): &(), step: &Step, _: &Rc<()>) -> Result<Rc<()>> {
        self.weights.borrow_mut().extend(step.weight_index());
        let mut max = self.max_states.borrow_mut();
        // Do not count the model's own reference.
        *max = (*max).max(Rc::strong_count(&self.held) - 1);
        Ok(Rc::clone(&self.held))
    }

    fn finish(&self, (): &(), state: &Rc<()>) -> Result<()> {
        self.advance(&(), &Step::Head, state).map(drop)
    }
}

/// Returns how often a layer-wise run loads weights if only those of the current step stay in memory, and the maximum
/// number of states kept.
fn count_loads(programs: &[Program], max_states: usize) -> (usize, usize) {
    let order = WeightOrderModel::default();
    Trie::new(programs).run_by_layer(max_states, &order, &(), &mut ()).unwrap();
    let mut weights = order.weights.into_inner();
    weights.dedup();
    (weights.len(), order.max_states.into_inner())
}

#[test]
fn layerwise_run_loads_every_layer_once() {
    // Weights are loaded once for each of the six layers and once for the head. Up to four states are kept, because
    // three of the four paths branch off after layer 1.
    assert_eq!(count_loads(&programs(), 4), (7, 4));
    let depth_first = WeightOrderModel::default();
    Trie::new(&programs()).run(&depth_first, &(), &mut ()).unwrap();
    let mut weights = depth_first.weights.into_inner();
    weights.dedup();
    // Computed by hand: layers 0 to 5 and the head, then three times layers 4, 5 and the head.
    assert_eq!(weights.len(), 7 + 3 * 3);
}

#[test]
fn layerwise_run_respects_the_state_limit() {
    // The dense program, and twelve programs that each omit one layer.
    let mut trials = vec![Program::dense(12)];
    trials.extend((0..12).map(|layer| Program::pruned(12, &[layer], |_| None)));
    assert_eq!(count_loads(&trials, 99).0, 13, "each layer, and the head");
    for max_states in [1, 2, 3, 5, 8] {
        let (loads, held) = count_loads(&trials, max_states);
        assert!(held <= max_states.max(2) + 1 && loads > 13, "{max_states}: {held} kept, {loads} loads");
    }
    for max_states in [1, 3, 99] {
        assert!(
            trials
                .iter()
                .zip(Trie::new(&trials).run_by_layer(max_states, &CountingModel::default(), &(), &mut ()).unwrap())
                .all(|(program, output)| program.0 == output.unwrap()),
            "{max_states}"
        );
    }
}

#[test]
fn steps_after_the_last_attention_run_on_scored_rows_only() {
    // The second program omits the last layer. The steps that it shares with the dense program keep all rows.
    let operator = Operator::diagonal(vec![1.0]).unwrap();
    let mut programs = vec![Program::dense(6), Program::pruned(6, &[5], |_| Some(Arc::clone(&operator)))];
    programs.push(Program::pruned(6, &[1], |_| None));
    let expected = ["Mlp", "Head", "Apply", "Head", "Mlp", "Head"];
    assert_eq!(narrow_steps(&Trie::for_scoring(&programs)), expected);
    assert!(narrow_steps(&Trie::new(&programs)).is_empty());
    assert!(narrow_steps(&Trie::for_scoring(&[Program::trunk(6)])).is_empty(), "without a head, all rows are needed");
}

fn narrow_steps(trie: &Trie) -> Vec<String> {
    let nodes = trie.nodes.iter().filter(|node| node.needs_only_scored_rows);
    nodes
        .map(|node| format!("{:?}", node.step).split_once('(').map_or("Head", |step_parts| step_parts.0).to_owned())
        .collect()
}

#[test]
fn trie_cost_counts_shared_and_separate_steps() {
    let trie = Trie::new(&programs());
    let cost = trie.cost(|step, _| f64::from(u8::from(matches!(step, Step::Sublayer(Sublayer::Mlp, _)))));
    assert_eq!(cost, Cost { shared: 12.0, separate: 22.0 });
}

#[test]
fn cost_divided_among_programs_adds_up_to_the_total() {
    let trie = Trie::new(&programs());
    let by_node: Vec<f64> = (0..trie.len()).map(|node| node as f64).collect();
    let total: f64 = by_node.iter().sum();
    assert!((trie.divide_among_programs(&by_node).iter().sum::<f64>() - total).abs() < 1e-9);
}
