# Builds the program from Cargo.lock and runs the README's main command:
#   docker build -t ghostlab . && docker run --rm -v "$PWD/out:/out" ghostlab
# Store and results are kept in /out. Other commands: docker run --rm -v "$PWD/out:/out" ghostlab plan table2
FROM rust:1.95-slim-bookworm AS build
# git tells the build which commit it is of. Versions are Debian's of the day: pinned ones vanish from its mirrors.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ make git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked

FROM debian:bookworm-slim
# The hub is reached over TLS, with the system's roots.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 ghostlab && mkdir /out && chown 1000 /out
COPY --from=build /src/target/release/ghostlab /usr/local/bin/ghostlab
# Where an installed program looks for them, beside the folder that it lies in.
COPY --from=build /src/experiments /usr/local/share/ghostlab/experiments
COPY --from=build /src/data/tiny /usr/local/share/ghostlab/data/tiny
USER 1000
WORKDIR /out
ENTRYPOINT ["ghostlab"]
CMD ["reproduce", "table2"]
