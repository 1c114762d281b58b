# Shortened after 3.test_cases/megatron/megatron-lm/aws-megatron-lm.Dockerfile of aws-samples/awsome-distributed-training.
FROM nvcr.io/nvidia/pytorch:25.06-py3
ARG EFA_INSTALLER_VERSION=1.42.0
ARG TRANSFORMERS_VERSION=4.52.4
ARG MEGATRON_LM_VERSION=core_v0.12.1
RUN cd $HOME \
    && curl -O https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER_VERSION}.tar.gz \
    && tar -xf $HOME/aws-efa-installer-${EFA_INSTALLER_VERSION}.tar.gz \
    && cd aws-efa-installer \
    && ./efa_installer.sh -y -g -d --skip-kmod
RUN pip install transformers==${TRANSFORMERS_VERSION} sentencepiece python-etcd
RUN cd /workspace && git clone --depth 1 --branch ${MEGATRON_LM_VERSION} https://github.com/NVIDIA/Megatron-LM.git \
    && cd Megatron-LM \
    && python3 -m pip install nltk  \
    && python3 -m pip install .
WORKDIR /workspace/Megatron-LM
