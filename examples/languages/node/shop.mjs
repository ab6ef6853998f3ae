// A shop's worker in Node: `node shop.mjs publish 100`, `node shop.mjs take`, `node shop.mjs receive`. DATABASE_URL names the
// database. take and receive end when there is nothing new for two seconds; a service would loop for ever.
import { setTimeout } from "node:timers/promises";
import pg from "pg";

const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
const listener = new pg.Client({ connectionString: process.env.DATABASE_URL }); // stays outside of transactions

// A sale and its message are one commit.
async function publish(count) {
  for (let id = 1; id <= count; id++) {
    await client.query("begin");
    await client.query("insert into shop_sale (id, cents) values ($1, $2)", [id, id * 5]);
    await client.query("select msgtx.publish('sales', value => $1, key => $2)", [JSON.stringify({ id, cents: id * 5 }), `${id}`]);
    await client.query("commit");
  }
}

// A consumer group: the rows and the offsets are one commit. After an error or kill -9, the records come again.
async function take() {
  for (;;) {
    await client.query("begin");
    const { rows } = await client.query(
      "select msgtx.value_json(value) as sale from msgtx.take('sales', 'booking', max_records => 10)");
    for (const { sale } of rows)
      await client.query("insert into shop_booked (sale_id, cents) values ($1, $2)", [sale.id, sale.cents]);
    await client.query("commit");
    if (rows.length === 0 && !(await more("booking"))) return;
  }
}

// A share group: each record is locked for this program, and answered for one by one.
async function receive() {
  for (;;) {
    const { rows } = await client.query(
      "select receipt, msgtx.value_json(value) as sale from msgtx.receive('sales', 'labels', max_records => 5)");
    for (const { receipt, sale } of rows) {
      await client.query("begin");
      await client.query("insert into shop_label (sale_id) values ($1)", [sale.id]);
      await client.query("select msgtx.acknowledge($1)", [receipt]);
      await client.query("commit");
    }
    if (rows.length === 0 && !(await more("labels"))) return;
  }
}

// Whether there may be records within two seconds. The COMMIT of a sale notifies the listener.
async function more(group) {
  listener.removeAllListeners("notification");
  const woken = new Promise((resolve) => listener.once("notification", () => resolve(true)));
  const { rows } = await listener.query("select has_records from msgtx.listen('sales', $1)", [group]);
  return rows[0].has_records || Promise.race([woken, setTimeout(2000, false, { ref: false })]);
}

await Promise.all([client.connect(), listener.connect()]);
const [what, count] = process.argv.slice(2);
await { publish, take, receive }[what](Number(count));
await Promise.all([client.end(), listener.end()]);
