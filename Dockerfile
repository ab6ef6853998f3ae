# syntax=docker/dockerfile:1
# The msgtx command for a PostgreSQL that is elsewhere (MSGTX_DATABASE_URL); see docker-compose.yml. The target `spark` has
# Spark as well: for its jobs, its master and its workers.
FROM python:3.13-slim AS build
WORKDIR /src
RUN python -m venv /opt/msgtx
COPY requirements.lock ./
RUN /opt/msgtx/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY cli cli
COPY migrations migrations
COPY msgtx msgtx
COPY pyspark_msgtx pyspark_msgtx
COPY spark_jobs spark_jobs
COPY tools/readme.py tools/
RUN /opt/msgtx/bin/pip install --no-cache-dir --disable-pip-version-check --no-index --no-build-isolation --no-deps .

FROM build AS build-spark
COPY requirements-spark.lock ./
RUN /opt/msgtx/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --use-pep517 \
    --no-build-isolation -r requirements-spark.lock

FROM python:3.13-slim AS spark
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends default-jre-headless libpostgresql-jdbc-java \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-spark /opt/msgtx /opt/msgtx
# The folder for exports is the user's, and so is a volume that is mounted there.
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin msgtx && install -d -o msgtx -g msgtx /data
# By its number: so Kubernetes sees that it is not root.
USER 10001
ENV PATH=/opt/msgtx/bin:$PATH PYTHONUNBUFFERED=1 PYSPARK_PYTHON=/opt/msgtx/bin/python
ENTRYPOINT ["msgtx"]
CMD ["--help"]

FROM python:3.13-slim
COPY --from=build /opt/msgtx /opt/msgtx
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin msgtx
# By its number: so Kubernetes sees that it is not root.
USER 10001
ENV PATH=/opt/msgtx/bin:$PATH PYTHONUNBUFFERED=1
ENTRYPOINT ["msgtx"]
CMD ["--help"]
