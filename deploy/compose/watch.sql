-- One line every five seconds, as long as it runs.
\pset tuples_only on
\pset format unaligned
SELECT format(
    '%s rows, %s of them twice, %s in the last 5 s; the newest: %s from %s for %s',
    to_char(count(*), 'FM999G999G999'),
    to_char(count(*) - count(DISTINCT ("partition", "offset")), 'FM999G999G999'),
    to_char(count(*) FILTER (WHERE written_at > now() - interval '5 s'), 'FM999G999G999'),
    (array_agg(order_id ORDER BY written_at DESC))[1],
    (array_agg(city ORDER BY written_at DESC))[1],
    to_char((array_agg(cents ORDER BY written_at DESC))[1] / 100.0, 'FM999G990D00'))
FROM orders
\watch 5
