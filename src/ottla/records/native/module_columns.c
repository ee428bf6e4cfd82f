/* Python's side of `columns`: arrays come as buffers, and are measured before they are used. */
#include "module.h"

#include "columns.h"

#define ARRAYS 15

static int is_array(const Py_buffer *data, size_t item) {
    return (size_t)data->len % item == 0 && (data->len == 0 || (uintptr_t)data->buf % item == 0);
}

static int refuse_arrays(void) {
    PyErr_SetString(PyExc_ValueError, "the arrays are not what the walk needs");
    return 0;
}

PyObject *py_outline(PyObject *module, PyObject *args) {
    Py_buffer data, table, found;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*w*", &data, &table, &found)) return NULL;
    if (is_array(&table, 8) && is_array(&found, 8) && found.len >= 16) {
        enum walk_status status;
        Py_BEGIN_ALLOW_THREADS
        status = outline(data.buf, data.len, table.buf, table.len / 8 / WIDTH, found.buf);
        Py_END_ALLOW_THREADS
        result = PyLong_FromLong(status);
    } else {
        refuse_arrays();
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&table);
    PyBuffer_Release(&found);
    return result;
}

static int64_t smaller(int64_t one, int64_t other) { return one < other ? one : other; }

static strings as_strings(const Py_buffer *ends, const Py_buffer *bits, const Py_buffer *bytes) {
    strings column = {ends->buf, bits == NULL ? NULL : bits->buf, bytes->buf,
                      smaller(bytes->len, INT32_MAX)};
    return column;
}

/* How many entries `ends`, which has one more, and `bits` have room for. */
static int64_t entries(const Py_buffer *ends, const Py_buffer *bits) {
    int64_t count = ends->len / 4 - 1;
    if (bits != NULL) count = smaller(count, (int64_t)bits->len * 8);
    return count < 0 ? 0 : count;
}

/* offsets, times, kinds; ends, bits and bytes of keys and of values; ends of headers; ends and bytes
 * of their keys; ends, bits and bytes of their values. */
static int as_columns(columns *out, const Py_buffer *a, int with_headers) {
    static const size_t items[ARRAYS] = {8, 8, 4, 4, 1, 1, 4, 1, 1, 4, 4, 1, 4, 1, 1};
    for (int index = 0; index < ARRAYS; index++)
        if (!is_array(a + index, items[index])) return 0;
    out->offsets = a[0].buf;
    out->times = a[1].buf;
    out->kinds = a[2].buf;
    out->keys = as_strings(a + 3, a + 4, a + 5);
    out->values = as_strings(a + 6, a + 7, a + 8);
    out->header_ends = a[9].buf;
    out->header_keys = as_strings(a + 10, NULL, a + 11);
    out->header_values = as_strings(a + 12, a + 13, a + 14);
    int64_t rows = smaller(a[0].len / 8, smaller(a[1].len / 8, a[2].len / 4));
    rows = smaller(rows, smaller(entries(a + 3, a + 4), entries(a + 6, a + 7)));
    out->rows = with_headers ? smaller(rows, entries(a + 9, NULL)) : rows;
    out->headers = smaller(entries(a + 10, NULL), entries(a + 12, a + 13));
    return 1;
}

static int is_within(const int64_t *cursor, const columns *out, int64_t size) {
    return cursor[BATCH] >= 0 && cursor[POSITION] >= -1 && cursor[POSITION] <= size &&
           cursor[ROWS] >= 0 && cursor[ROWS] <= out->rows && cursor[KEYS] >= 0 &&
           cursor[KEYS] <= out->keys.room && cursor[VALUES] >= 0 &&
           cursor[VALUES] <= out->values.room && cursor[HEADERS] >= 0 &&
           cursor[HEADERS] <= out->headers && cursor[HEADER_KEYS] >= 0 &&
           cursor[HEADER_KEYS] <= out->header_keys.room && cursor[HEADER_VALUES] >= 0 &&
           cursor[HEADER_VALUES] <= out->header_values.room;
}

PyObject *py_fill_columns(PyObject *module, PyObject *args) {
    Py_buffer data, table, cursor, a[ARRAYS];
    PyObject *result = NULL;
    long long first, limit;
    int with_headers;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*w*LLpw*w*w*w*w*w*w*w*w*w*w*w*w*w*w*", &data, &table, &cursor,
                          &first, &limit, &with_headers, a, a + 1, a + 2, a + 3, a + 4, a + 5, a + 6,
                          a + 7, a + 8, a + 9, a + 10, a + 11, a + 12, a + 13, a + 14))
        return NULL;
    columns out;
    if (is_array(&table, 8) && is_array(&cursor, 8) && cursor.len == CURSOR * 8 &&
        as_columns(&out, a, with_headers) && is_within(cursor.buf, &out, data.len)) {
        int64_t place[CURSOR]; /* a copy: another thread cannot move it outside */
        enum walk_status status;
        memcpy(place, cursor.buf, sizeof place);
        Py_BEGIN_ALLOW_THREADS
        status = fill_columns(data.buf, data.len, table.buf, table.len / 8 / WIDTH, place, first,
                              limit, with_headers, &out);
        Py_END_ALLOW_THREADS
        memcpy(cursor.buf, place, sizeof place);
        result = PyLong_FromLong(status);
    } else {
        refuse_arrays();
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&table);
    PyBuffer_Release(&cursor);
    for (int index = 0; index < ARRAYS; index++) PyBuffer_Release(a + index);
    return result;
}
