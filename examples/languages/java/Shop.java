// A shop's worker in Java: `java -cp postgresql.jar Shop.java publish 100`, `… take`, `… receive`. JDBC_URL names the database.
// take and receive end when there is nothing new for two seconds; a service would loop for ever.
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;

public class Shop {
    record Sale(String receipt, long id, long cents) {}

    // A sale and its message are one commit.
    static void publish(Connection db, long count) throws SQLException {
        db.setAutoCommit(false);
        for (long id = 1; id <= count; id++) {
            run(db, "insert into shop_sale (id, cents) values (?, ?)", id, id * 5);
            run(db, "select msgtx.publish('sales', value => ?, key => ?)",
                "{\"id\": %d, \"cents\": %d}".formatted(id, id * 5), Long.toString(id));
            db.commit();
        }
    }

    // A consumer group: the rows and the offsets are one commit. After an error or kill -9, the records come again.
    static void take(Connection db) throws SQLException {
        db.setAutoCommit(false);
        List<Sale> sales;
        do {
            sales = sales(db, "select null, v ->> 'id', v ->> 'cents' from (select msgtx.value_json(value) as v"
                + " from msgtx.take('sales', 'booking', max_records => 10)) r");
            for (Sale sale : sales)
                run(db, "insert into shop_booked (sale_id, cents) values (?, ?)", sale.id(), sale.cents());
            db.commit();
        } while (!sales.isEmpty() || more(db, "booking"));
    }

    // A share group: each record is locked for this program, and answered for one by one.
    static void receive(Connection db) throws SQLException {
        List<Sale> sales;
        do {
            db.setAutoCommit(true);
            sales = sales(db, "select receipt, v ->> 'id', v ->> 'cents' from (select receipt, msgtx.value_json(value) as v"
                + " from msgtx.receive('sales', 'labels', max_records => 5)) r");
            db.setAutoCommit(false);
            for (Sale sale : sales) {
                run(db, "insert into shop_label (sale_id) values (?)", sale.id());
                run(db, "select msgtx.acknowledge(?)", sale.receipt());
                db.commit();
            }
        } while (!sales.isEmpty() || more(db, "labels"));
    }

    static boolean more(Connection db, String group) throws SQLException {
        try (PreparedStatement statement = db.prepareStatement("select msgtx.wait_for_records('sales', ?, '2 s')")) {
            statement.setString(1, group);
            ResultSet found = statement.executeQuery();
            found.next();
            boolean more = found.getBoolean(1);
            if (!db.getAutoCommit()) db.commit();
            return more;
        }
    }

    static List<Sale> sales(Connection db, String sql) throws SQLException {
        List<Sale> sales = new ArrayList<>();
        try (PreparedStatement statement = db.prepareStatement(sql); ResultSet found = statement.executeQuery()) {
            while (found.next()) sales.add(new Sale(found.getString(1), found.getLong(2), found.getLong(3)));
        }
        return sales;
    }

    static void run(Connection db, String sql, Object... arguments) throws SQLException {
        try (PreparedStatement statement = db.prepareStatement(sql)) {
            for (int i = 0; i < arguments.length; i++) statement.setObject(i + 1, arguments[i]);
            statement.execute();
        }
    }

    public static void main(String[] arguments) throws SQLException {
        try (Connection db = DriverManager.getConnection(System.getenv("JDBC_URL"))) {
            switch (arguments[0]) {
                case "publish" -> publish(db, Long.parseLong(arguments[1]));
                case "take" -> take(db);
                case "receive" -> receive(db);
            }
        }
    }
}
