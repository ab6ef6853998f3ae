"""The order service: an order and its message are one commit. There is no outbox, and no relay that could lag or repeat."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from examples.orders.models import TOPIC, Order, open_database
from msgtx.orm import publish


class NewOrder(BaseModel):
    """What a customer sends."""

    customer: str
    reference: str
    cents: int


class PlacedOrder(NewOrder):
    """What is stored and published."""

    id: int


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the database for as long as the service runs."""
    app.state.engine = open_database()
    yield
    app.state.engine.dispose()


def open_session(request: Request) -> Iterator[Session]:
    """Lend a session to a request. What it has not committed is rolled back."""
    with Session(request.app.state.engine) as session:
        yield session


app = FastAPI(lifespan=lifespan)
Database = Annotated[Session, Depends(open_session)]


@app.post("/orders", status_code=201)
def place(new: NewOrder, session: Database) -> PlacedOrder:
    """Store an order and publish it. Its customer is the key: a customer's orders stay in their order."""
    order = Order(**new.model_dump())
    session.add(order)
    try:
        session.flush()  # now it has its id
        placed = PlacedOrder(id=order.id, **new.model_dump())
        publish(session, TOPIC, json.dumps(placed.model_dump()).encode(), key=order.customer.encode())
        session.commit()
    except IntegrityError as error:
        raise HTTPException(409, "the reference was used before, or the amount is not above 0") from error
    return placed


@app.get("/orders/{number}")
def show(number: int, session: Database) -> PlacedOrder:
    """Show an order."""
    order = session.get(Order, number)
    if order is None:
        raise HTTPException(404, f"there is no order {number}")
    return PlacedOrder(id=order.id, customer=order.customer, reference=order.reference, cents=order.cents)
