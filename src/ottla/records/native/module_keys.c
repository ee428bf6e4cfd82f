/* Python's `KeyOffsets`, and the functions that use one.
 *
 * They run without the interpreter's lock, so a map that is in use refuses a second caller.
 */
#include "module.h"

#include <stdlib.h>

#include "cleaning.h"

typedef struct {
    PyObject_HEAD
    key_offsets keys;
    int busy;
} map_object;

/* ------------------------------------------------------------------------------- the type */

static int new_secret(key_offsets *keys) {
    PyObject *os = PyImport_ImportModule("os");
    if (os == NULL) return 0;
    PyObject *random = PyObject_CallMethod(os, "urandom", "i", 16);
    Py_DECREF(os);
    if (random == NULL) return 0;
    char *bytes;
    Py_ssize_t size;
    int good = PyBytes_AsStringAndSize(random, &bytes, &size) == 0 && size == 16;
    if (good) memcpy(keys->secret, bytes, 16);
    Py_DECREF(random);
    return good;
}

static int map_init(PyObject *self, PyObject *args, PyObject *named) {
    static char *names[] = {"memory_bytes", "load_factor", NULL};
    map_object *map = (map_object *)self;
    long long memory;
    double load_factor = 0.9;
    if (!PyArg_ParseTupleAndKeywords(args, named, "L|d", names, &memory, &load_factor)) return -1;
    if (memory < (long long)sizeof(slot) || !(load_factor > 0 && load_factor <= 1)) {
        PyErr_SetString(PyExc_ValueError,
                        "a map needs memory for a slot, and a load factor in (0, 1]");
        return -1;
    }
    if (map->busy || map->keys.slots != NULL) {
        PyErr_SetString(PyExc_ValueError, "the map of keys is in use");
        return -1;
    }
    if (!new_secret(&map->keys)) return -1;
    if (!keys_open(&map->keys, (uint64_t)memory, load_factor)) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static void map_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    keys_close(&((map_object *)self)->keys);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* The map, free to be used, or NULL. */
static map_object *usable(PyObject *self) {
    map_object *map = (map_object *)self;
    if (map->keys.slots != NULL && !map->busy) return map;
    PyErr_SetString(PyExc_ValueError, map->busy ? "the map of keys is in use in another thread"
                                                : "the map of keys is closed");
    return NULL;
}

static Py_ssize_t map_length(PyObject *self) { return (Py_ssize_t)((map_object *)self)->keys.count; }

static PyObject *map_get(PyObject *self, PyObject *key) {
    map_object *map = usable(self);
    Py_buffer data;
    if (map == NULL || PyObject_GetBuffer(key, &data, PyBUF_SIMPLE) < 0) return NULL;
    int64_t offset =
        keys_get(&map->keys, siphash128(map->keys.secret, data.buf, (size_t)data.len));
    PyBuffer_Release(&data);
    if (offset < 0) Py_RETURN_NONE;
    return PyLong_FromLongLong(offset);
}

static PyObject *map_put(PyObject *self, PyObject *args) {
    map_object *map = usable(self);
    Py_buffer data;
    long long offset;
    if (map == NULL || !PyArg_ParseTuple(args, "y*L", &data, &offset)) return NULL;
    int done = 0;
    int good = offset >= 0 && offset < INT64_MAX;
    if (good)
        done = keys_put(&map->keys, siphash128(map->keys.secret, data.buf, (size_t)data.len), offset);
    else
        PyErr_Format(PyExc_ValueError, "offset %lld is not one of a record", offset);
    PyBuffer_Release(&data);
    return good ? PyBool_FromLong(done) : NULL;
}

static PyObject *map_cover(PyObject *self, PyObject *offset) {
    map_object *map = usable(self);
    if (map == NULL) return NULL;
    long long value = PyLong_AsLongLong(offset);
    if (value == -1 && PyErr_Occurred()) return NULL;
    if (value > map->keys.latest_offset) map->keys.latest_offset = value;
    Py_RETURN_NONE;
}

static PyObject *map_clear(PyObject *self, PyObject *unused) {
    map_object *map = usable(self);
    (void)unused;
    if (map == NULL || !new_secret(&map->keys)) return NULL;
    if (!keys_clear(&map->keys)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *map_close(PyObject *self, PyObject *unused) {
    map_object *map = (map_object *)self;
    (void)unused;
    if (map->keys.slots != NULL) {
        if (usable(self) == NULL) return NULL;
        keys_close(&map->keys);
    }
    Py_RETURN_NONE;
}

static PyObject *map_latest_offset(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(((map_object *)self)->keys.latest_offset);
}

static PyObject *map_capacity(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(((map_object *)self)->keys.capacity);
}

static PyMethodDef methods[] = {
    {"get", map_get, METH_O, NULL},           {"put", map_put, METH_VARARGS, NULL},
    {"cover", map_cover, METH_O, NULL},       {"clear", map_clear, METH_NOARGS, NULL},
    {"close", map_close, METH_NOARGS, NULL},  {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"latest_offset", map_latest_offset, NULL, NULL, NULL},
    {"capacity", map_capacity, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot map_slots[] = {
    {Py_tp_init, map_init},       {Py_tp_dealloc, map_dealloc},   {Py_tp_methods, methods},
    {Py_tp_getset, properties},   {Py_mp_length, map_length},     {Py_sq_length, map_length},
    {0, NULL},
};

PyType_Spec key_offsets_spec = {
    .name = "ottla.records._native.KeyOffsets",
    .basicsize = sizeof(map_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = map_slots,
};

/* -------------------------------------------------------------------------- the functions */

static map_object *usable_map(PyObject *module, PyObject *object) {
    module_state *state = PyModule_GetState(module);
    if (!PyObject_TypeCheck(object, (PyTypeObject *)state->key_offsets)) {
        PyErr_SetString(PyExc_TypeError, "a KeyOffsets is needed");
        return NULL;
    }
    return usable(object);
}

static int is_inside(long long position, const Py_buffer *data, const char *what) {
    if (position >= 0 && position <= data->len) return 1;
    PyErr_Format(PyExc_ValueError, "byte %lld is not in %s of %zd", position, what, data->len);
    return 0;
}

static int overlap(const Py_buffer *one, const Py_buffer *other) {
    uintptr_t first = (uintptr_t)one->buf, second = (uintptr_t)other->buf;
    return first < second + (size_t)other->len && second < first + (size_t)one->len;
}

PyObject *py_index_chunk(PyObject *module, PyObject *args) {
    PyObject *object, *result = NULL;
    Py_buffer chunk;
    long long start, first, stop;
    if (!PyArg_ParseTuple(args, "Oy*LLL", &object, &chunk, &start, &first, &stop)) return NULL;
    map_object *map = usable_map(module, object);
    if (map != NULL && is_inside(start, &chunk, "a chunk")) {
        int64_t position = start, indexed = 0;
        enum chunk_end end;
        map->busy = 1;
        Py_BEGIN_ALLOW_THREADS
        end = index_chunk(&map->keys, chunk.buf, chunk.len, &position, first, stop, &indexed);
        Py_END_ALLOW_THREADS
        map->busy = 0;
        result = Py_BuildValue("(LiL)", (long long)position, (int)end, (long long)indexed);
    }
    PyBuffer_Release(&chunk);
    return result;
}

/* The part of a header that matters here: base offset, last offset delta, base timestamp, max
 * timestamp, attributes, record count. */
static int as_header(header *batch, long long base_offset, long long last_offset_delta,
                     long long base_timestamp, long long max_timestamp, int attributes,
                     long long record_count) {
    if (base_offset < 0 || last_offset_delta < 0 || last_offset_delta > INT32_MAX ||
        base_offset >= INT64_MAX - last_offset_delta || record_count < 0 ||
        record_count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the header has an impossible offset or record count");
        return 0;
    }
    memset(batch, 0, sizeof *batch);
    batch->base_offset = base_offset;
    batch->last_offset_delta = (int32_t)last_offset_delta;
    batch->last_offset = base_offset + last_offset_delta;
    batch->base_timestamp = base_timestamp;
    batch->max_timestamp = max_timestamp;
    batch->attributes = attributes;
    batch->record_count = (int32_t)record_count;
    return 1;
}

PyObject *py_index_records(PyObject *module, PyObject *args) {
    PyObject *object, *result = NULL;
    Py_buffer data;
    long long base_offset, last_offset_delta, record_count, first, stop;
    if (!PyArg_ParseTuple(args, "Oy*LLLLL", &object, &data, &base_offset, &last_offset_delta,
                          &record_count, &first, &stop))
        return NULL;
    map_object *map = usable_map(module, object);
    header batch;
    if (map != NULL && as_header(&batch, base_offset, last_offset_delta, 0, 0, 0, record_count)) {
        failure why;
        int full, sound;
        map->busy = 1;
        Py_BEGIN_ALLOW_THREADS
        sound = index_records(&map->keys, &batch, data.buf, data.len, first, stop, &full, &why);
        Py_END_ALLOW_THREADS
        map->busy = 0;
        if (sound)
            result = PyBool_FromLong(full);
        else
            refuse(module, &why);
    }
    PyBuffer_Release(&data);
    return result;
}

PyObject *py_filter_chunk(PyObject *module, PyObject *args) {
    PyObject *object, *result = NULL;
    Py_buffer chunk, out, stay;
    long long start, filled, now_ms, horizon_ms;
    if (!PyArg_ParseTuple(args, "Oy*Lw*LLLy*", &object, &chunk, &start, &out, &filled, &now_ms,
                          &horizon_ms, &stay))
        return NULL;
    map_object *map = usable_map(module, object);
    if (map == NULL || !is_inside(start, &chunk, "a chunk") || !is_inside(filled, &out, "an output"))
        goto done;
    if (overlap(&chunk, &out) || stay.len % 8 ||
        (stay.len && (uintptr_t)stay.buf % _Alignof(int64_t))) {
        PyErr_SetString(PyExc_ValueError, "the output overlaps the chunk, or must_stay is no array");
        goto done;
    }
    keep_rules rules = {now_ms, horizon_ms, stay.buf, stay.len / 8};
    scratch space = {NULL, 0};
    filter_result did = {.position = start, .filled = filled};
    enum chunk_end end;
    map->busy = 1;
    Py_BEGIN_ALLOW_THREADS
    end = filter_chunk(&map->keys, chunk.buf, chunk.len, out.buf, out.len, &rules, &space, &did);
    Py_END_ALLOW_THREADS
    map->busy = 0;
    if (end == AT_NO_MEMORY) {
        PyErr_NoMemory();
    } else {
        PyObject *rows = PyBytes_FromStringAndSize(
            did.rows == NULL ? "" : (const char *)did.rows,
            (Py_ssize_t)(did.row_count * ROW_WIDTH * (int64_t)sizeof(int64_t)));
        if (rows != NULL)
            result = Py_BuildValue("(LiLNLL)", (long long)did.position, (int)end,
                                   (long long)did.filled, rows, (long long)did.read,
                                   (long long)did.kept);
    }
    free(space.keep);
    free(did.rows);
done:
    PyBuffer_Release(&chunk);
    PyBuffer_Release(&out);
    PyBuffer_Release(&stay);
    return result;
}

PyObject *py_filter_records(PyObject *module, PyObject *args) {
    PyObject *object, *body = NULL, *result = NULL;
    Py_buffer data;
    long long base_offset, last_offset_delta, base_timestamp, max_timestamp, record_count;
    long long now_ms, horizon_ms;
    int attributes;
    if (!PyArg_ParseTuple(args, "Oy*LLLLiLLL", &object, &data, &base_offset, &last_offset_delta,
                          &base_timestamp, &max_timestamp, &attributes, &record_count, &now_ms,
                          &horizon_ms))
        return NULL;
    map_object *map = usable_map(module, object);
    header batch;
    scratch space = {NULL, 0};
    if (map == NULL || !as_header(&batch, base_offset, last_offset_delta, base_timestamp,
                                  max_timestamp, attributes, record_count))
        goto done;
    keep_rules rules = {now_ms, horizon_ms, NULL, 0};
    choice chosen;
    failure why;
    int sound;
    map->busy = 1;
    Py_BEGIN_ALLOW_THREADS
    sound = choose(&map->keys, &batch, data.buf, data.len, &rules, &space, &chosen, &why);
    Py_END_ALLOW_THREADS
    map->busy = 0;
    if (!sound) {
        refuse(module, &why);
        goto done;
    }
    body = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)chosen.body_size);
    if (body == NULL) goto done;
    if (!write_kept(&batch, data.buf, data.len, &space, &chosen, (uint8_t *)PyBytes_AsString(body))) {
        PyErr_SetString(PyExc_ValueError, "the records changed while they were read");
        goto done;
    }
    result = Py_BuildValue("(OLNNLL)", body, (long long)chosen.kept, PyBool_FromLong(chosen.changed),
                           PyBool_FromLong(chosen.sets_horizon), (long long)chosen.base_timestamp,
                           (long long)chosen.max_timestamp);
done:
    Py_XDECREF(body);
    free(space.keep);
    PyBuffer_Release(&data);
    return result;
}
