# The command pfl in an image, with the folder /experiments for data and runs.
#   docker build --tag pfl .                                  CUDA: the torch that pip finds brings its libraries
#   docker build --tag pfl --build-arg BASE=pytorch/pytorch . CUDA: the torch of an image is kept
#   docker build --tag pfl --build-arg TORCH_INDEX=URL .      CPU: URL is the index that pytorch.org shows for it
#   docker run --rm --volume "$PWD:/experiments" --user "$(id -u):$(id -g)" pfl fit --config quickstart      (CUDA: --gpus all)
ARG BASE=python:3.12-slim
FROM ${BASE}

# users of any id may run it: matplotlib and torch keep their caches in HOME
RUN useradd --create-home pfl && install --directory --owner pfl /experiments && chmod 1777 /home/pfl /experiments
ENV HOME=/home/pfl USER=pfl PATH=/opt/pfl/bin:$PATH
RUN python3 -m venv --system-site-packages /opt/pfl

# largest first, so that a layer is rebuilt when what it is made of changes
ARG TORCH_INDEX
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --cache-dir /root/.cache/pip ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch torchvision
WORKDIR /src
COPY pyproject.toml .
RUN --mount=type=cache,target=/root/.cache/pip \
    python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
        > requirements.txt \
    && pip install --cache-dir /root/.cache/pip --requirement requirements.txt
COPY . .
RUN pip install --no-cache-dir --no-deps .

USER pfl
WORKDIR /experiments
ENTRYPOINT ["pfl"]
CMD ["--help"]
