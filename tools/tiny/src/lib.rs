//! Makes what is in `data/tiny/`: an invented world's texts and tasks ([`world`]), and backbones trained on them
//! ([`train`]). Also untrained ones in the shapes of real backbones ([`random`]). The program `ghostlab` reads the files and does not depend on this.

pub mod random;
pub mod train;
pub mod world;
