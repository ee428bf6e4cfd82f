/* Python's side of `rows`: arrays come as buffers, and are measured before they are used. */
#include "module.h"

#include "rows.h"

#define LONG_WORK (1 << 20)
#define ROUTE_ARRAYS 13
#define ENCODE_ARRAYS 17

static int64_t longs(const Py_buffer *data) { return data->len / 8; }

static int are_longs(const Py_buffer *data) {
    return data->len % 8 == 0 && (data->len == 0 || (uintptr_t)data->buf % 8 == 0);
}

static blobs as_blobs(int64_t count, const Py_buffer *nulls, const Py_buffer *offsets,
                      const Py_buffer *data) {
    blobs column = {count, nulls == NULL ? NULL : nulls->buf, offsets->buf, data->buf, data->len};
    return column;
}

static PyObject *give_back(Py_buffer *arrays, int count, int64_t result) {
    for (int index = 0; index < count; index++) PyBuffer_Release(arrays + index);
    if (result != ROWS_BAD) return PyLong_FromLongLong(result);
    PyErr_SetString(PyExc_ValueError, "the arrays do not fit one another");
    return NULL;
}

/* Small work is done sooner than the interpreter's lock would come back. */
static PyThreadState *let_others_run(int64_t bytes) {
    return bytes >= LONG_WORK ? PyEval_SaveThread() : NULL;
}

static void go_on(PyThreadState *saved) {
    if (saved != NULL) PyEval_RestoreThread(saved);
}

/* topics, chosen, unkeyed, key offsets, keys, sizes; counts, bases, available, where they begin,
 * turn, room; the size of a chunk; lanes */
PyObject *py_route(PyObject *module, PyObject *args) {
    Py_buffer a[ROUTE_ARRAYS];
    long long chunk;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*y*y*w*w*Lw*", a, a + 1, a + 2, a + 3, a + 4, a + 5,
                          a + 6, a + 7, a + 8, a + 9, a + 10, a + 11, &chunk, a + 12))
        return NULL;
    int64_t result = ROWS_BAD, rows = longs(a), count = longs(a + 6);
    int sound = longs(a + 1) == rows && a[2].len == rows && longs(a + 3) == rows + 1 &&
                longs(a + 5) == rows && longs(a + 12) == rows && longs(a + 7) == count &&
                longs(a + 9) == count + 1 && longs(a + 10) == count && longs(a + 11) == count;
    for (int index = 0; index < ROUTE_ARRAYS; index++)
        if (index != 2 && index != 4) sound = sound && are_longs(a + index);
    if (sound) {
        blobs keys = as_blobs(rows, NULL, a + 3, a + 4);
        topics known = {count,       a[6].buf,  a[7].buf,  a[8].buf, a[9].buf,
                        longs(a + 8), a[10].buf, a[11].buf, chunk};
        PyThreadState *saved = let_others_run(a[4].len);
        result = route(rows, a[0].buf, a[1].buf, a[2].buf, &keys, a[5].buf, &known, a[12].buf);
        go_on(saved);
    }
    return give_back(a, ROUTE_ARRAYS, result);
}

/* lanes; starts, order */
PyObject *py_sort_by_lane(PyObject *module, PyObject *args) {
    Py_buffer a[3];
    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*w*", a, a + 1, a + 2)) return NULL;
    int64_t result = ROWS_BAD, rows = longs(a);
    if (are_longs(a) && are_longs(a + 1) && are_longs(a + 2) && longs(a + 1) >= 1 &&
        longs(a + 2) == rows) {
        PyThreadState *saved = let_others_run(a[0].len);
        result = sort_by_lane(rows, a[0].buf, longs(a + 1) - 1, a[1].buf, a[2].buf);
        go_on(saved);
    }
    return give_back(a, 3, result);
}

/* times; nulls, offsets and bytes of keys and of values; lists of headers; offsets and bytes of their
 * names; nulls, offsets and bytes of their values. */
static int as_rows(table_rows *rows, const Py_buffer *a) {
    int64_t count = longs(a), headers = a[10].len;
    rows->count = count;
    rows->times = a[0].buf;
    rows->keys = as_blobs(count, a + 1, a + 2, a + 3);
    rows->values = as_blobs(count, a + 4, a + 5, a + 6);
    rows->header_lists = a[7].buf;
    rows->header_names = as_blobs(headers, NULL, a + 8, a + 9);
    rows->header_values = as_blobs(headers, a + 10, a + 11, a + 12);
    return are_longs(a) && are_longs(a + 2) && are_longs(a + 5) && are_longs(a + 7) &&
           are_longs(a + 8) && are_longs(a + 11) && a[1].len == count && longs(a + 2) == count + 1 &&
           a[4].len == count && longs(a + 5) == count + 1 && longs(a + 7) == count + 1 &&
           longs(a + 8) == headers + 1 && longs(a + 11) == headers + 1;
}

/* What `last - first` of the rows hold, about. */
static int64_t bytes_of(const table_rows *rows, int64_t first, int64_t last) {
    if (rows->count == 0) return 0;
    return (rows->keys.size + rows->values.size) / rows->count * (last - first);
}

/* The thirteen arrays of `as_rows`; order, first, last; out, numbers, first_row, made */
PyObject *py_encode(PyObject *module, PyObject *args) {
    Py_buffer a[ENCODE_ARRAYS];
    const Py_buffer *order = a + 13, *out = a + 14, *numbers = a + 15, *made = a + 16;
    long long first, last, first_row;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*y*y*y*y*y*y*LLw*w*Lw*", a, a + 1, a + 2, a + 3,
                          a + 4, a + 5, a + 6, a + 7, a + 8, a + 9, a + 10, a + 11, a + 12, a + 13,
                          &first, &last, a + 14, a + 15, &first_row, a + 16))
        return NULL;
    int64_t result = ROWS_BAD;
    table_rows rows;
    if (as_rows(&rows, a) && are_longs(order) && are_longs(numbers) && are_longs(made) &&
        longs(made) == MADE && first >= 0 && first <= last && last <= longs(order)) {
        int64_t place[MADE]; /* a copy: another thread cannot move it outside */
        memcpy(place, made->buf, sizeof place);
        if (place[MADE_POSITION] >= 0 && place[MADE_POSITION] <= out->len &&
            place[MADE_COUNT] >= 0 && place[MADE_COUNT] <= longs(numbers)) {
            PyThreadState *saved = let_others_run(bytes_of(&rows, first, last));
            result = encode(&rows, order->buf, first, last, out->buf, out->len, numbers->buf,
                            longs(numbers), first_row, place);
            go_on(saved);
            if (result != ROWS_BAD) memcpy(made->buf, place, sizeof place);
        }
    }
    return give_back(a, ENCODE_ARRAYS, result);
}
