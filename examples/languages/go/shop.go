// A shop's worker in Go: `go run . publish 100`, `go run . take`, `go run . receive`. DATABASE_URL names the database. take and
// receive end when there is nothing new for two seconds; a service would loop for ever.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"
)

type sale struct {
	ID    int64 `json:"id"`
	Cents int64 `json:"cents"`
}

// publish makes a sale and its message in one commit.
func publish(ctx context.Context, db *pgx.Conn, count int64) error {
	for id := int64(1); id <= count; id++ {
		value, _ := json.Marshal(sale{id, id * 5})
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "insert into shop_sale (id, cents) values ($1, $2)", id, id*5); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "select msgtx.publish('sales', value => $1, key => $2)", string(value), strconv.FormatInt(id, 10))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// take is a consumer group: the rows and the offsets are one commit. After an error or kill -9, the records come again.
func take(ctx context.Context, db *pgx.Conn) error {
	for {
		found := 0
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "select msgtx.value_json(value) from msgtx.take('sales', 'booking', max_records => 10)")
			if err != nil {
				return err
			}
			sales, err := pgx.CollectRows(rows, pgx.RowTo[sale])
			if err != nil {
				return err
			}
			for _, each := range sales {
				if _, err := tx.Exec(ctx, "insert into shop_booked (sale_id, cents) values ($1, $2)", each.ID, each.Cents); err != nil {
					return err
				}
			}
			found = len(sales)
			return nil
		})
		if err != nil {
			return err
		}
		if more, err := wait(ctx, db, "booking", found); err != nil || !more {
			return err
		}
	}
}

type received struct {
	Receipt string
	Sale    sale
}

// receive is a share group: each record is locked for this program, and answered for one by one.
func receive(ctx context.Context, db *pgx.Conn) error {
	for {
		rows, err := db.Query(ctx, "select receipt, msgtx.value_json(value) from msgtx.receive('sales', 'labels', max_records => 5)")
		if err != nil {
			return err
		}
		records, err := pgx.CollectRows(rows, pgx.RowToStructByPos[received])
		if err != nil {
			return err
		}
		for _, each := range records {
			err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "insert into shop_label (sale_id) values ($1)", each.Sale.ID); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, "select msgtx.acknowledge($1)", each.Receipt)
				return err
			})
			if err != nil {
				return err
			}
		}
		if more, err := wait(ctx, db, "labels", len(records)); err != nil || !more {
			return err
		}
	}
}

// wait tells whether to go on: something was found, or comes soon.
func wait(ctx context.Context, db *pgx.Conn, group string, found int) (more bool, err error) {
	if found > 0 {
		return true, nil
	}
	err = db.QueryRow(ctx, "select msgtx.wait_for_records('sales', $1, '2 s')", group).Scan(&more)
	return more, err
}

func main() {
	ctx := context.Background()
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err == nil {
		switch os.Args[1] {
		case "publish":
			count, _ := strconv.ParseInt(os.Args[2], 10, 64)
			err = publish(ctx, db, count)
		case "take":
			err = take(ctx, db)
		case "receive":
			err = receive(ctx, db)
		}
	}
	if err != nil {
		log.Fatal(err)
	}
}
