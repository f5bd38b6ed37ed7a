//! Sample figures of each kind and size, for tests.

use super::*;
use crate::model::{Cut, Sublayer};
use crate::recovery::label;

pub(super) const METHODS: [&str; 7] =
    ["none", "prune-and-comp", "replaceme-ls", "replaceme-cos", "linearpatch-diag", "linearpatch-rotate", "ghosted"];

pub(super) fn axis(label: &str, unit: &str, scale: Scale) -> Axis {
    Axis { label: label.into(), unit: unit.into(), scale }
}

/// Returns the `i`th term of a low-discrepancy sequence in [0, 1), computed from multiples of the golden ratio.
fn scatter(i: usize) -> f64 {
    (i as f64 * 0.618_033_988_749_894_9).fract()
}

pub(super) fn bars(groups: &[&str], width: Width, scale: Scale) -> (Surroundings, BarChart) {
    let around = Surroundings {
        title: "Boundary error by recovery".into(),
        description: "Bars of the error, one group for each backbone.".into(),
        heading: "4 of 16 layers removed by LLM-Streamline".into(),
        note: "tiny-qwen3: ReplaceMe (LS) is ahead of Ghost Layer (Ours).".into(),
        width,
    };
    let bars = BarChart {
        axis: axis("Boundary MAE ↓", "hidden-state units", scale),
        groups: groups.iter().map(|g| (*g).to_owned()).collect(),
        series: METHODS
            .iter()
            .enumerate()
            .map(|(i, method)| Series {
                method: (*method).into(),
                label: label(method).to_owned(),
                values: (0..groups.len())
                    .map(|j| BarValue {
                        value: Some(0.5 - 0.05 * i as f64 + 0.1 * scatter(i + 7 * j)),
                        error: Some(0.02),
                    })
                    .collect(),
            })
            .collect(),
        missing: "failed".into(),
    };
    (around, bars)
}

pub(super) fn norms() -> (Surroundings, BarChart) {
    let around = Surroundings {
        title: "Parts of the operator".into(),
        description: "Frobenius norms of the symmetric and the antisymmetric part.".into(),
        ..Surroundings::default()
    };
    let bars = BarChart {
        axis: axis("Share of ‖M‖", "", Scale::Linear),
        groups: ["tiny-llama", "tiny-qwen3", "tiny-olmo2"].map(str::to_owned).to_vec(),
        series: vec![
            series("m_symmetric_share", "‖M_sym‖ / ‖M‖", [0.81, 0.77, 0.69]),
            series("m_antisymmetric_share", "‖M_asym‖ / ‖M‖", [0.58, 0.64, 0.72]),
        ],
        missing: "–".into(),
    };
    (around, bars)
}

pub(super) fn series(method: &str, label: &str, values: [f64; 3]) -> Series {
    Series { method: method.into(), label: label.into(), values: values.map(BarValue::from).to_vec() }
}

/// Builds a chart with a missing value, a negative value, a zero and long names.
pub(super) fn irregular_bars() -> (Surroundings, BarChart) {
    let (around, mut figure) =
        bars(&["llama-3.1-8b, eleven layers", "a-backbone-of-a-very-long-name-indeed"], Width::Page, Scale::Linear);
    figure.series[1].values[0] = None.into();
    figure.series[2].values[1] = f64::NAN.into();
    figure.series[3].values[0] = BarValue { value: Some(-0.2), error: Some(0.1) };
    figure.series[4].values[1] = 0.0.into();
    figure.series[5].label =
        "a recovery of a name that is much longer than all of the page has room for, whatever is done".into();
    (around, figure)
}

pub(super) fn channels(count: usize) -> (Surroundings, Curves) {
    let around = Surroundings {
        title: "Error of each channel".into(),
        description: "The mean absolute error of every channel, a line for each recovery.".into(),
        width: Width::Page,
        ..Surroundings::default()
    };
    let curves = Curves {
        x: axis("Channel", "", Scale::Linear),
        y: axis("MAE", "hidden-state units", Scale::Log),
        lines: METHODS
            .iter()
            .enumerate()
            .map(|(i, method)| {
                let mut values: Vec<f64> = (0..count)
                    .map(|x| {
                        let spike = if x % 97 == 13 { 6.0 } else { 1.0 };
                        (0.08 + 0.05 * scatter(x) + 0.03 * scatter(x * 7 + i)) * spike * (1.0 - 0.09 * i as f64)
                    })
                    .collect();
                values.sort_by(f64::total_cmp);
                let points =
                    values.into_iter().enumerate().map(|(x, y)| Point { x: x as f64, y: Some(y), error: None });
                Line { method: (*method).into(), label: label(method).to_owned(), points: points.collect() }
            })
            .collect(),
        levels: vec![],
    };
    (around, curves)
}

pub(super) fn depths() -> (Surroundings, Curves) {
    let around = Surroundings {
        title: "Accuracy against depth".into(),
        description: "Average accuracy of nine tasks for 7 to 15 removed layers.".into(),
        heading: "LLaMA-3.1-8B, layers removed by LLM-Streamline".into(),
        note: "Whiskers: one standard error up and down.".into(),
        width: Width::Column,
    };
    let curves = Curves {
        x: axis("Removed layers", "of 32", Scale::Linear),
        y: axis("Average accuracy ↑", "%", Scale::Linear),
        lines: METHODS
            .iter()
            .enumerate()
            .skip(1)
            .map(|(i, method)| Line {
                method: (*method).into(),
                label: label(method).to_owned(),
                points: [7.0, 9.0, 11.0, 13.0, 15.0]
                    .iter()
                    .enumerate()
                    .map(|(j, x)| Point {
                        x: *x,
                        y: (i != 2 || j != 2)
                            .then_some(62.0 - (7.0 - i as f64) * (0.4 + 0.5 * j as f64) - 3.0 * j as f64),
                        error: Some(0.7),
                    })
                    .collect(),
            })
            .collect(),
        levels: vec![Level { method: "dense".into(), label: "Dense".into(), value: 67.51 }],
    };
    (around, curves)
}

pub(super) fn diagram(layers: usize, contiguous: Vec<usize>, scattered: Vec<usize>) -> (Surroundings, LayerDiagram) {
    let around = Surroundings {
        title: "Ghosted Layers".into(),
        description: "Stacks of layers, dense, pruned and repaired.".into(),
        heading: "One Ghosted Layer for each region".into(),
        width: Width::Page,
        ..Surroundings::default()
    };
    let diagram = LayerDiagram {
        layers,
        selections: vec![
            diagram_row("LLM-Streamline, contiguous", contiguous),
            diagram_row("SLEB, not contiguous", scattered),
        ],
    };
    (around, diagram)
}

fn diagram_row(label: &str, removed: Vec<usize>) -> DiagramRow {
    DiagramRow { label: label.into(), cut: DiagramCut::Layers { removed: Cut::layers(removed), operators: vec![] } }
}

/// Builds a diagram of 40 layers with replaced attention sublayers and with removed layers or sublayers.
pub(super) fn split_diagram() -> (Surroundings, LayerDiagram) {
    let (around, mut figure) = diagram(40, vec![30, 31], vec![]);
    let replaced = Cut::sublayers([3, 9, 10, 38].map(|layer| (layer, Sublayer::Attention)));
    let removed = replaced.with(10, Sublayer::Mlp).with(20, Sublayer::Attention).with(20, Sublayer::Mlp);
    let cut = DiagramCut::Sublayers(SublayerCut { removed, replaced });
    figure.selections[1] = DiagramRow { label: "NBL bound".into(), cut };
    (around, figure)
}

pub(super) fn figure_from<T>((around, data): (Surroundings, T), plot: fn(T) -> Plot) -> Figure {
    Figure { around, plot: plot(data) }
}

/// Returns one figure of each kind and size.
pub(super) fn all() -> Vec<(&'static str, Figure)> {
    let backbones = ["tiny-llama", "tiny-qwen3", "tiny-olmo2"];
    vec![
        ("fig1", figure_from(bars(&backbones, Width::Page, Scale::Linear), Plot::Bars)),
        ("fig1_log_column", figure_from(bars(&["llama-3.1-8b"], Width::Column, Scale::Log), Plot::Bars)),
        ("fig1_wild", figure_from(irregular_bars(), Plot::Bars)),
        ("fig3", figure_from(norms(), Plot::Bars)),
        ("fig4_128", figure_from(channels(128), Plot::Curves)),
        ("fig4_4096", figure_from(channels(4096), Plot::Curves)),
        ("fig5", figure_from(depths(), Plot::Curves)),
        ("fig2_16", figure_from(diagram(16, vec![9, 10, 11, 12], vec![3, 7, 8, 12]), Plot::Layers)),
        ("fig2_split", figure_from(split_diagram(), Plot::Layers)),
        (
            "fig2_40",
            figure_from(diagram(40, (24..35).collect(), vec![4, 9, 10, 17, 22, 23, 24, 30, 31, 35, 38]), Plot::Layers),
        ),
    ]
}
