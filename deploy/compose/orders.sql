-- What the connector writes to. There is no key, so a record that came twice would be here twice.
CREATE TABLE orders (
    order_id    text,
    customer    text,
    city        text,
    cents       bigint,
    lines       jsonb,
    placed_at   timestamptz,
    topic       text    NOT NULL,
    "partition" integer NOT NULL,
    "offset"    bigint  NOT NULL,
    written_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON orders ("partition", "offset");
CREATE INDEX ON orders (written_at);
