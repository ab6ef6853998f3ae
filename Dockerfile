# syntax=docker/dockerfile:1
# The msgtx command for a PostgreSQL that is elsewhere (MSGTX_DATABASE_URL); see docker-compose.yml.
FROM python:3.13-slim AS build
WORKDIR /src
RUN python -m venv /opt/msgtx
COPY requirements.lock ./
RUN /opt/msgtx/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY cli cli
COPY migrations migrations
COPY msgtx msgtx
RUN /opt/msgtx/bin/pip install --no-cache-dir --disable-pip-version-check --no-index --no-build-isolation --no-deps .

FROM python:3.13-slim
COPY --from=build /opt/msgtx /opt/msgtx
RUN useradd --system --no-create-home --shell /usr/sbin/nologin msgtx
USER msgtx
ENV PATH=/opt/msgtx/bin:$PATH PYTHONUNBUFFERED=1
ENTRYPOINT ["msgtx"]
CMD ["--help"]
