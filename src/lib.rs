//! ghostlab: prune whole layers out of a language model, repair the cut without training, score every variant.
//!
//! The floors, each of which uses only those below it (design §2):
//!
//! | floor | modules |
//! | --- | --- |
//! | 5 | [`cli`] |
//! | 4 | [`artifact`], [`report`], [`exec`], [`reproduce`] |
//! | 3 | [`plan`], [`grid`] |
//! | 2 | [`calibrate`], [`criterion`], [`recovery`], [`evaluate`], [`train`] |
//! | 1 | [`model`], [`corpus`], [`tasks`], [`world`], [`metric`], [`audit`], [`claims`] |
//! | 0 | [`store`], [`linalg`], [`files`], [`machine`], [`options`], [`error`], [`record`], [`names`], [`paper`], [`significance`], [`figure`], [`page`] |

pub mod artifact;
pub mod audit;
pub mod calibrate;
pub mod claims;
pub mod cli;
pub mod corpus;
pub mod criterion;
pub mod error;
pub mod evaluate;
pub mod exec;
pub mod figure;
pub mod files;
pub mod grid;
pub mod linalg;
pub mod machine;
pub mod metric;
pub mod model;
pub mod names;
pub mod options;
pub mod page;
pub mod paper;
pub mod plan;
pub mod record;
pub mod recovery;
pub mod report;
pub mod reproduce;
pub mod significance;
pub mod store;
pub mod tasks;
pub mod train;
pub mod world;
