# An image for pods of Kubernetes and for CI. It was not built where it was written: no builder was there.
#   docker build -t loam .                                  torch for the CPU
#   docker build -t loam --build-arg TORCH_INDEX= .         torch of PyPI, with CUDA
FROM python:3.11-slim-bookworm
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# The compiler is for torch.compile on GPUs. ray[default] has what `ray job submit` asks, for docs/rayjob.yaml.
RUN apt-get update && apt-get install -y --no-install-recommends gcc g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/loam
COPY . .
RUN pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c constraints.txt -e '.[ray,s3]' 'ray[default]'
RUN useradd --create-home --home-dir /home/loam loam
USER loam
ENTRYPOINT ["loam"]
