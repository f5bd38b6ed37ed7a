# Builds the program from Cargo.lock and runs the README's main command:
#   docker build -t ghostlab . && docker run --rm -v "$PWD/out:/out" ghostlab
# Store and results are kept in /out. Other commands: docker run --rm -v "$PWD/out:/out" ghostlab plan table2
FROM rust:1.95-slim-bookworm AS build
# The build reads the commit from git. Packages are not pinned, because Debian's mirrors drop old versions.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ make git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked

FROM debian:bookworm-slim
# TLS connections to the hub need the system's root certificates.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 ghostlab && mkdir /out && chown 1000 /out
COPY --from=build /src/target/release/ghostlab /usr/local/bin/ghostlab
# The installed program finds its data in `share`, next to its own folder.
COPY --from=build /src/experiments /usr/local/share/ghostlab/experiments
COPY --from=build /src/data/tiny /usr/local/share/ghostlab/data/tiny
USER 1000
WORKDIR /out
ENTRYPOINT ["ghostlab"]
CMD ["reproduce", "table2"]
