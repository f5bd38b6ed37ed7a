//! Prefix tree that runs many programs of one backbone together, so that shared steps run once (design §3).

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Instant;

use super::program::{Program, Step, StepIdentity};
use crate::error::Result;

/// Model whose steps a [`Trie`] can run. Its state between steps is the residual stream. Engines and test models
/// implement it.
pub trait Model {
    type Batch: ?Sized;
    type Residual;
    type Output;

    /// Announces the weights (`Step::weight_index`) that the current and the next steps need, for prefetching.
    fn announce_weights(&self, _now: Option<usize>, _next: Option<usize>) {}

    /// Runs `Step::Embed`.
    fn begin(&self, batch: &Self::Batch) -> Result<Self::Residual>;

    /// Runs any step except `Step::Embed` and `Step::Head`.
    fn advance(&self, batch: &Self::Batch, step: &Step, state: &Self::Residual) -> Result<Self::Residual>;

    /// Reduces the state to the rows that the head reads. Called when no later step needs the other rows.
    fn narrow(&self, _batch: &Self::Batch, state: Self::Residual) -> Result<Self::Residual> {
        Ok(state)
    }

    /// Runs `Step::Head`.
    fn finish(&self, batch: &Self::Batch, state: &Self::Residual) -> Result<Self::Output>;

    /// Runs the `Step::Head` of a node. Models whose output depends on the program override this method.
    fn finish_at(&self, _node: usize, batch: &Self::Batch, state: &Self::Residual) -> Result<Self::Output> {
        self.finish(batch, state)
    }
}

/// Observer of every executed step, for example to accumulate calibration statistics or to measure times.
pub trait Observer<S: ?Sized> {
    /// Called after a step with its output state, or with `None` after the head.
    fn after_step(&mut self, node: usize, state: Option<&S>, seconds: f64) -> Result<()>;
}

/// Observer that does nothing.
impl<S: ?Sized> Observer<S> for () {
    fn after_step(&mut self, _: usize, _: Option<&S>, _: f64) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct TrieNode {
    step: Step,
    children: Vec<usize>,
    /// Programs that end at this node.
    ending_programs: Vec<usize>,
    /// Number of programs that contain this node.
    programs: usize,
    /// Whether this step and all following steps only need the scored rows.
    needs_only_scored_rows: bool,
}

impl TrieNode {
    fn new(step: Step) -> Self {
        Self { step, children: Vec::new(), ending_programs: Vec::new(), programs: 0, needs_only_scored_rows: false }
    }
}

/// Prefix tree of [`Program`]s. Its root, node 0, is `Embed`.
#[derive(Debug)]
pub struct Trie {
    nodes: Vec<TrieNode>,
    /// Nodes of each program, in execution order.
    paths: Vec<Vec<usize>>,
    /// Nodes of the reference program, with which the other programs are compared. The reference program is not one of
    /// the trie's programs.
    reference: Option<Vec<usize>>,
}

/// Cost of a batch, such as a number of operations. Shared steps count once in `shared`, and once per program in
/// `separate`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    pub shared: f64,
    pub separate: f64,
}

impl Trie {
    /// Builds the trie. Equal prefixes of programs share their nodes.
    ///
    /// # Panics
    /// Panics if a program does not begin with `Embed`.
    pub fn new(programs: &[Program]) -> Self {
        let mut trie = Self {
            nodes: vec![TrieNode::new(Step::Embed)],
            paths: Vec::with_capacity(programs.len()),
            reference: None,
        };
        // Find children through a hash map, because a node may have thousands of children.
        let mut node_by_identity: HashMap<(usize, StepIdentity<'_>), usize> = HashMap::new();
        for (index, program) in programs.iter().enumerate() {
            assert_eq!(program.0.first(), Some(&Step::Embed), "a program must begin with `Embed`");
            let mut path = vec![0];
            for step in &program.0[1..] {
                let parent = path[path.len() - 1];
                let node =
                    *node_by_identity.entry((parent, step.identity())).or_insert_with(|| trie.add_node(parent, step));
                path.push(node);
            }
            for &node in &path {
                trie.nodes[node].programs += 1;
            }
            trie.nodes[path[path.len() - 1]].ending_programs.push(index);
            trie.paths.push(path);
        }
        trie
    }

    /// Builds a trie like [`Self::new`] for callers that only need the outputs of the heads. Steps after the last
    /// attention run on the scored rows only, so an observer sees fewer rows.
    pub fn for_scoring(programs: &[Program]) -> Self {
        let mut trie = Self::new(programs);
        // Children have higher indices than their parents.
        for node in (0..trie.nodes.len()).rev() {
            let TrieNode { step, children, .. } = &trie.nodes[node];
            let reaches_head = *step == Step::Head || !children.is_empty();
            trie.nodes[node].needs_only_scored_rows = step.is_rowwise()
                && reaches_head
                && children.iter().all(|&child| trie.nodes[child].needs_only_scored_rows);
        }
        trie
    }

    /// Builds a trie like [`Self::for_scoring`] in which the programs are compared with `reference`.
    pub fn with_reference(reference: &Program, programs: &[Program]) -> Self {
        // Insert the reference first, so that its head runs first.
        let mut trie = Self::for_scoring(&[std::slice::from_ref(reference), programs].concat());
        trie.reference = Some(trie.paths.remove(0));
        for node in &mut trie.nodes {
            node.ending_programs = node.ending_programs.iter().filter_map(|program| program.checked_sub(1)).collect();
        }
        trie
    }

    /// Builds a trie that contains only the reference program. Returns `None` if there is no reference.
    pub(super) fn reference_alone(&self) -> Option<Self> {
        let steps = self.reference.as_ref()?.iter().map(|&node| self.nodes[node].step.clone());
        Some(Self::with_reference(&Program(steps.collect()), &[]))
    }

    /// Returns the node of the reference program's head.
    pub(super) fn reference_head(&self) -> Option<usize> {
        self.reference.as_ref()?.last().copied()
    }

    fn add_node(&mut self, parent: usize, step: &Step) -> usize {
        let node = self.nodes.len();
        self.nodes.push(TrieNode::new(step.clone()));
        self.nodes[parent].children.push(node);
        node
    }

    /// Returns the number of steps run per batch.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of sublayer steps.
    pub fn sublayers(&self) -> usize {
        self.nodes.iter().filter(|node| node.step.sublayer().is_some()).count()
    }

    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Returns the number of programs.
    pub fn programs(&self) -> usize {
        self.paths.len()
    }

    /// Returns the nodes of a program, in order.
    pub fn path(&self, program: usize) -> &[usize] {
        &self.paths[program]
    }

    pub(super) fn step(&self, node: usize) -> &Step {
        &self.nodes[node].step
    }

    pub(super) fn children(&self, node: usize) -> &[usize] {
        &self.nodes[node].children
    }

    /// Divides a per-node quantity, such as seconds, among the programs. A shared node is split equally among its
    /// programs, and the total of the reference program among all programs.
    pub fn divide_among_programs(&self, by_node: &[f64]) -> Vec<f64> {
        let reference = self.reference.as_ref().map_or(0.0, |path| self.sum_program_fractions(path, by_node));
        let reference_fraction = reference / self.paths.len().max(1) as f64;
        self.paths.iter().map(|path| self.sum_program_fractions(path, by_node) + reference_fraction).collect()
    }

    fn sum_program_fractions(&self, path: &[usize], by_node: &[f64]) -> f64 {
        path.iter().map(|&node| by_node[node] / self.nodes[node].programs as f64).sum()
    }

    /// Computes the cost of a batch with and without sharing. `step_cost` receives the step and whether it runs on
    /// scored rows only.
    pub(super) fn cost(&self, step_cost: impl Fn(&Step, bool) -> f64) -> Cost {
        let mut shared = 0.0;
        let mut separate = 0.0;
        for node in &self.nodes {
            // A comparison runs the output projection on the streams of both programs.
            let is_compared = node.step == Step::Head && self.reference.is_some();
            let times = if !is_compared {
                1.0
            } else if node.ending_programs.is_empty() {
                0.0
            } else {
                2.0
            };
            let cost = times * step_cost(&node.step, node.needs_only_scored_rows);
            shared += cost;
            separate += cost * node.programs as f64;
        }
        Cost { shared, separate }
    }

    /// Runs one batch through all programs, depth first. Returns the output of each program's head, or `None` for
    /// programs without a head.
    ///
    /// Keeps only those states of the current path that other branches still need.
    pub fn run<M: Model<Output: Clone>>(
        &self,
        model: &M,
        batch: &M::Batch,
        observer: &mut impl Observer<M::Residual>,
    ) -> Result<Vec<Option<M::Output>>> {
        self.run_in_order(|ready| ready.len() - 1, model, batch, observer)
    }

    /// Runs all programs layer by layer, so that each layer is loaded only once. If this would keep more than
    /// `max_states` states, some paths are completed first.
    pub fn run_by_layer<M: Model<Output: Clone>>(
        &self,
        max_states: usize,
        model: &M,
        batch: &M::Batch,
        observer: &mut impl Observer<M::Residual>,
    ) -> Result<Vec<Option<M::Output>>> {
        self.run_in_order(
            |ready: &[PendingStep<M::Residual>]| {
                let held: BTreeSet<*const M::Residual> =
                    ready.iter().map(|candidate| Rc::as_ptr(&candidate.state)).collect();
                // A state with a single owner is replaced by its successor, so it needs no additional space.
                let steps = ready
                    .iter()
                    .enumerate()
                    .filter(|(_, candidate)| held.len() < max_states || Rc::strong_count(&candidate.state) == 1);
                let next =
                    steps.min_by_key(|(_, candidate)| (self.nodes[candidate.node].step.weight_index(), candidate.node));
                next.map_or(ready.len() - 1, |(index, _)| index)
            },
            model,
            batch,
            observer,
        )
    }

    /// Runs all steps. `choose` selects the next step among those whose input state is available.
    fn run_in_order<M: Model<Output: Clone>>(
        &self,
        choose: impl Fn(&[PendingStep<M::Residual>]) -> usize,
        model: &M,
        batch: &M::Batch,
        observer: &mut impl Observer<M::Residual>,
    ) -> Result<Vec<Option<M::Output>>> {
        let mut outputs = vec![None; self.paths.len()];
        if self.is_empty() {
            return Ok(outputs);
        }
        let started = Instant::now();
        let state = model.begin(batch)?;
        observer.after_step(0, Some(&state), started.elapsed().as_secs_f64())?;
        let mut ready = Vec::new();
        self.push_children(0, state, &mut ready);
        while !ready.is_empty() {
            let PendingStep { node, state } = ready.remove(choose(&ready));
            let TrieNode { step, children, ending_programs, .. } = &self.nodes[node];
            let started = Instant::now();
            let now = step.weight_index();
            model.announce_weights(
                now,
                self.next_weights(now, children.iter().copied().chain(ready.iter().map(|candidate| candidate.node))),
            );
            if *step == Step::Head {
                let output = model.finish_at(node, batch, &state)?;
                observer.after_step(node, None, started.elapsed().as_secs_f64())?;
                for &program in ending_programs {
                    outputs[program] = Some(output.clone());
                }
                continue;
            }
            let next = model.advance(batch, step, &state)?;
            observer.after_step(node, Some(&next), started.elapsed().as_secs_f64())?;
            let keeps_only_scored_rows = !self.nodes[node].needs_only_scored_rows
                && children.iter().all(|&child| self.nodes[child].needs_only_scored_rows);
            let next = if keeps_only_scored_rows && !children.is_empty() { model.narrow(batch, next)? } else { next };
            // Free the input state unless other branches share it.
            drop(state);
            self.push_children(node, next, &mut ready);
        }
        Ok(outputs)
    }

    /// Adds the children of a node to the ready list, in reverse order because [`Self::run`] takes the last entry
    /// first.
    fn push_children<R>(&self, node: usize, state: R, ready: &mut Vec<PendingStep<R>>) {
        let state = Rc::new(state);
        let children = self.nodes[node].children.iter().rev();
        ready.extend(children.map(|&node| PendingStep { node, state: Rc::clone(&state) }));
    }

    /// Returns the weights, other than `now`, that the given steps or their successors need next.
    fn next_weights(&self, now: Option<usize>, steps: impl Iterator<Item = usize>) -> Option<usize> {
        let all: BTreeSet<usize> = steps
            .filter_map(|mut node: usize| {
                loop {
                    match self.nodes[node].step.weight_index() {
                        Some(weights) if Some(weights) != now => return Some(weights),
                        _ => node = *self.nodes[node].children.first()?,
                    }
                }
            })
            .collect();
        let later = all.iter().find(|&&weights| Some(weights) > now);
        later.or(all.first()).copied()
    }
}

/// A step that is ready to run. Other steps may share its input state.
struct PendingStep<R> {
    node: usize,
    state: Rc<R>,
}

#[cfg(test)]
mod tests;
