//! Makes what lies in `data/tiny/`: an invented world's texts and tasks ([`world`]), and backbones trained on them
//! ([`train`]). The program `ghostlab` reads the files and does not depend on this.

pub mod train;
pub mod world;
