# An image with Python and `phalanx` on the PATH, for pods with one or more ranks. docs/launching-kubernetes.md says how to put a training into it.
# `cargo xtask tidy` checks that what is copied is there; the image itself has not been built on the machine where this was written.

FROM rust:1.90-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/maturin \
    && /opt/maturin/bin/pip install --no-cache-dir "maturin>=1.9,<2"
WORKDIR /src
COPY Cargo.toml Cargo.lock pyproject.toml README.md LICENSE ./
COPY crates crates
COPY xtask xtask
COPY python/phalanx python/phalanx
RUN /opt/maturin/bin/maturin build --release --locked --out /wheels

FROM python:3.12-slim-bookworm
# The wheel is used from the first stage, so that no layer of this image keeps it.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels pip install --no-cache-dir /wheels/*.whl
RUN useradd --uid 1000 --create-home phalanx
USER 1000:1000
WORKDIR /train
CMD ["phalanx", "doctor"]
