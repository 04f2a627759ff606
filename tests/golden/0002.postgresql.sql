CREATE TABLE public.autotune_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.benchmark_specs (
    key text NOT NULL,
    spec text NOT NULL
);
CREATE TABLE public.best (
    workload_key text NOT NULL,
    hardware_key text NOT NULL,
    environment_key text NOT NULL,
    config_key text NOT NULL,
    kernel_revision text NOT NULL,
    expected_ns double precision NOT NULL,
    baseline_ns double precision NOT NULL,
    speedup double precision NOT NULL,
    speedup_low double precision NOT NULL,
    speedup_high double precision NOT NULL,
    max_error double precision,
    contended boolean NOT NULL,
    measured_at timestamp with time zone NOT NULL,
    uid text NOT NULL
);
CREATE TABLE public.configs (
    key text NOT NULL,
    algorithm text NOT NULL,
    placement text NOT NULL,
    params text NOT NULL
);
CREATE TABLE public.environments (
    key text NOT NULL,
    framework text NOT NULL,
    compiler text NOT NULL,
    identity text NOT NULL
);
CREATE TABLE public.hardware (
    key text NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    vendor text NOT NULL,
    arch text NOT NULL,
    allowed_cpus bigint NOT NULL,
    memory_bytes bigint NOT NULL,
    profile text NOT NULL
);
CREATE TABLE public.workloads (
    key text NOT NULL,
    op text NOT NULL,
    spec text NOT NULL,
    dims text NOT NULL,
    dtype text NOT NULL,
    flops bigint NOT NULL,
    bytes bigint NOT NULL,
    tolerance double precision,
    default_config text NOT NULL
);
CREATE VIEW public.best_configs AS
 SELECT w.op,
    w.spec AS workload,
    h.name AS hardware,
    h.allowed_cpus,
    e.framework,
    c.algorithm,
    c.params,
    c.placement,
    b.expected_ns,
    b.baseline_ns,
    b.speedup,
    b.speedup_low,
    b.speedup_high,
    b.beats_default,
    b.max_error,
    b.contended,
    b.kernel_revision,
    b.measured_at,
    b.workload_key,
    b.hardware_key,
    b.environment_key,
    b.config_key
   FROM ((((( SELECT ranked.workload_key,
            ranked.hardware_key,
            ranked.environment_key,
            ranked.config_key,
            ranked.kernel_revision,
            ranked.expected_ns,
            ranked.baseline_ns,
            ranked.speedup,
            ranked.speedup_low,
            ranked.speedup_high,
            ranked.max_error,
            ranked.contended,
            ranked.measured_at,
            ranked.uid,
            ranked.beats_default,
            ranked.is_default,
            row_number() OVER (PARTITION BY ranked.workload_key, ranked.hardware_key, ranked.environment_key ORDER BY ranked.beats_default DESC, ranked.is_default DESC, ranked.speedup DESC, ranked.config_key) AS place
           FROM ( SELECT d.workload_key,
                    d.hardware_key,
                    d.environment_key,
                    d.config_key,
                    d.kernel_revision,
                    d.expected_ns,
                    d.baseline_ns,
                    d.speedup,
                    d.speedup_low,
                    d.speedup_high,
                    d.max_error,
                    d.contended,
                    d.measured_at,
                    d.uid,
                        CASE
                            WHEN ((d.config_key <> v.default_config) AND (d.speedup >= (1.02)::double precision) AND (d.speedup_low > (1)::double precision) AND (d.max_error <= v.tolerance) AND (NOT d.contended)) THEN 1
                            ELSE 0
                        END AS beats_default,
                        CASE
                            WHEN (d.config_key = v.default_config) THEN 1
                            ELSE 0
                        END AS is_default
                   FROM (public.best d
                     JOIN public.workloads v ON ((v.key = d.workload_key)))) ranked) b
     JOIN public.workloads w ON ((w.key = b.workload_key)))
     JOIN public.hardware h ON ((h.key = b.hardware_key)))
     JOIN public.environments e ON ((e.key = b.environment_key)))
     JOIN public.configs c ON ((c.key = b.config_key)))
  WHERE (b.place = 1);
CREATE TABLE public.jobs (
    workload_key text NOT NULL,
    hardware_key text NOT NULL,
    environment_key text NOT NULL,
    space_key text NOT NULL,
    trials bigint NOT NULL,
    finished_at timestamp with time zone NOT NULL
);
CREATE TABLE public.measurements (
    uid text NOT NULL,
    workload_key text NOT NULL,
    hardware_key text NOT NULL,
    environment_key text NOT NULL,
    config_key text NOT NULL,
    spec_key text NOT NULL,
    kernel_revision text NOT NULL,
    stage text NOT NULL,
    status text NOT NULL,
    message text NOT NULL,
    median_ns double precision,
    baseline_median_ns double precision,
    speedup double precision,
    speedup_low double precision,
    speedup_high double precision,
    max_error double precision,
    times_ns text NOT NULL,
    baseline_ns text NOT NULL,
    prepare_ns bigint NOT NULL,
    build_ns bigint NOT NULL,
    workspace_bytes bigint NOT NULL,
    contended boolean NOT NULL,
    job text NOT NULL,
    repetition bigint NOT NULL,
    source text NOT NULL,
    measured_at timestamp with time zone NOT NULL
);
CREATE VIEW public.coverage AS
 SELECT w.op,
    w.spec AS workload,
    h.name AS hardware,
    h.allowed_cpus,
    e.framework,
    m.measurements,
    m.configs,
    m.ok,
    m.failed,
    ( SELECT count(*) AS count
           FROM public.best b
          WHERE ((b.workload_key = m.workload_key) AND (b.hardware_key = m.hardware_key) AND (b.environment_key = m.environment_key))) AS decided,
    ( SELECT max(j.finished_at) AS max
           FROM public.jobs j
          WHERE ((j.workload_key = m.workload_key) AND (j.hardware_key = m.hardware_key) AND (j.environment_key = m.environment_key))) AS finished_at,
    m.last_measured_at,
    m.workload_key,
    m.hardware_key,
    m.environment_key
   FROM (((( SELECT measurements.workload_key,
            measurements.hardware_key,
            measurements.environment_key,
            count(*) AS measurements,
            count(DISTINCT measurements.config_key) AS configs,
            sum(
                CASE
                    WHEN (measurements.status = 'OK'::text) THEN 1
                    ELSE 0
                END) AS ok,
            sum(
                CASE
                    WHEN (measurements.status = 'OK'::text) THEN 0
                    ELSE 1
                END) AS failed,
            max(measurements.measured_at) AS last_measured_at
           FROM public.measurements
          GROUP BY measurements.workload_key, measurements.hardware_key, measurements.environment_key) m
     JOIN public.workloads w ON ((w.key = m.workload_key)))
     JOIN public.hardware h ON ((h.key = m.hardware_key)))
     JOIN public.environments e ON ((e.key = m.environment_key)));
CREATE VIEW public.failures AS
 SELECT m.status,
    m.message,
    w.op,
    w.spec AS workload,
    c.algorithm,
    c.params,
    c.placement,
    h.name AS hardware,
    e.framework,
    m.stage,
    m.max_error,
    m.kernel_revision,
    m.job,
    m.measured_at,
    m.uid
   FROM ((((public.measurements m
     JOIN public.workloads w ON ((w.key = m.workload_key)))
     JOIN public.hardware h ON ((h.key = m.hardware_key)))
     JOIN public.environments e ON ((e.key = m.environment_key)))
     JOIN public.configs c ON ((c.key = m.config_key)))
  WHERE (m.status <> 'OK'::text);
CREATE TABLE public.wishes (
    workload_key text NOT NULL,
    hardware_key text NOT NULL,
    spec text NOT NULL,
    asked bigint NOT NULL,
    weight double precision NOT NULL,
    first_asked_at timestamp with time zone NOT NULL,
    last_asked_at timestamp with time zone NOT NULL,
    taken_by text NOT NULL,
    taken_until timestamp with time zone,
    granted_at timestamp with time zone
);
CREATE VIEW public.open_wishes AS
 SELECT w.spec AS workload,
    h.name AS hardware,
    w.asked,
    w.weight,
    w.first_asked_at,
    w.last_asked_at,
    w.taken_by,
    w.taken_until,
    w.workload_key,
    w.hardware_key
   FROM (public.wishes w
     LEFT JOIN public.hardware h ON ((h.key = w.hardware_key)))
  WHERE (w.granted_at IS NULL);
CREATE VIEW public.search_history AS
 SELECT w.op,
    w.spec AS workload,
    h.name AS hardware,
    e.framework,
    row_number() OVER (PARTITION BY m.workload_key, m.hardware_key, m.environment_key ORDER BY m.measured_at, m.uid) AS trial,
    m.stage,
    m.status,
    c.algorithm,
    c.params,
    m.speedup,
    m.median_ns,
    max(m.speedup) OVER (PARTITION BY m.workload_key, m.hardware_key, m.environment_key ORDER BY m.measured_at, m.uid) AS best_so_far,
    m.contended,
    m.measured_at,
    m.workload_key,
    m.hardware_key,
    m.environment_key,
    m.config_key
   FROM ((((public.measurements m
     JOIN public.workloads w ON ((w.key = m.workload_key)))
     JOIN public.hardware h ON ((h.key = m.hardware_key)))
     JOIN public.environments e ON ((e.key = m.environment_key)))
     JOIN public.configs c ON ((c.key = m.config_key)));
CREATE VIEW public.top_gains AS
 SELECT op,
    workload,
    hardware,
    framework,
    algorithm,
    params,
    placement,
    speedup,
    speedup_low,
    speedup_high,
    baseline_ns,
    expected_ns,
    (baseline_ns - (baseline_ns / speedup)) AS saved_ns,
    max_error,
    measured_at,
    workload_key,
    hardware_key,
    environment_key,
    config_key
   FROM public.best_configs
  WHERE (beats_default = 1);
INSERT INTO public.autotune_version VALUES ('0002');
INSERT INTO public.benchmark_specs VALUES ('8b4dc4e4b122adf59428bc024f749858', '{"allocator":"sample","build_timeout_s":60.5,"cache_state":"warm","final_budget_s":10.5,"final_pairs":41,"give_up_ratio":0.61,"max_final_pairs":81,"memory_limit_bytes":34359738368,"min_sample_ns":100001,"run_timeout_s":120.5,"screen_budget_s":2.5,"screen_pairs":11,"tolerated_contention":0.1}');
INSERT INTO public.best VALUES ('2d5c4b98c7528a9d60c3da183e8ccf82', '187e2689eba017d941e3c135bdeed3ee', 'c0995b673063ea94f6ac98b8ba3b1c25', 'a91ad164e41e5415bd9ab2b20b18ae5c', 'r1', 100.5, 201, 2, 2, 2, 1e-07, false, '2026-01-31 09:30:00+00', 'eaa3b701de829b9a14ed49931f3c1d8a');
INSERT INTO public.best VALUES ('2d5c4b98c7528a9d60c3da183e8ccf82', '187e2689eba017d941e3c135bdeed3ee', 'c0995b673063ea94f6ac98b8ba3b1c25', '82e50ddb5637142593b8b7930d50f388', 'r1', 200, 100, 0.5, 0.5, 0.5, 1e-07, false, '2026-01-31 09:30:01.5+00', '97a8b4941e4b99123e31091ca990f418');
INSERT INTO public.configs VALUES ('82e50ddb5637142593b8b7930d50f388', 'tiled', 'cpu', '{"mr":2}');
INSERT INTO public.configs VALUES ('8ae2c167afbfb557f7aba30734ace981', 'tiled', 'cpu', '{"mr":3}');
INSERT INTO public.configs VALUES ('a91ad164e41e5415bd9ab2b20b18ae5c', 'tiled', 'cpu', '{"mr":6,"nr":16,"order":["m","n",["k",0.5]],"pack":true,"threads":1}');
INSERT INTO public.environments VALUES ('c0995b673063ea94f6ac98b8ba3b1c25', 'torch 2.13.0+cpu', 'g++ 12.2.0', '{"allocator":"","compiler":"g++ 12.2.0","driver":"","framework":"torch 2.13.0+cpu","libraries":["numpy 2.4.6"],"num_threads":"","system":"linux","threads":"gomp","wait_policy":""}');
INSERT INTO public.hardware VALUES ('187e2689eba017d941e3c135bdeed3ee', 'cpu', 'Sample CPU @ 2.00GHz', 'Sample', 'x86_64', 16, 68719476736, '{"allowed_cpus":16,"arch":"x86_64","bandwidth_gbs":0.0,"caches":[{"level":1,"shared_by":2,"size_bytes":32768},{"level":2,"shared_by":2,"size_bytes":1048576},{"level":3,"shared_by":16,"size_bytes":33554432}],"efficiency_cores":0,"isa":["avx2","fma"],"kind":"cpu","logical_cores":16,"memory_bytes":68719476736,"model":"family 1 model 2 stepping 3","name":"Sample CPU @ 2.00GHz","numa_nodes":1,"peak_gflops":{},"performance_cores":0,"physical_cores":8,"slice":"","vendor":"Sample"}');
INSERT INTO public.hardware VALUES ('faf1107891ecc2a652f9fcbd1809b101', 'cpu', 'Other CPU', 'Sample', 'x86_64', 16, 68719476736, '{"allowed_cpus":16,"arch":"x86_64","bandwidth_gbs":0.0,"caches":[{"level":1,"shared_by":2,"size_bytes":32768},{"level":2,"shared_by":2,"size_bytes":1048576},{"level":3,"shared_by":16,"size_bytes":33554432}],"efficiency_cores":0,"isa":["avx2","fma"],"kind":"cpu","logical_cores":16,"memory_bytes":68719476736,"model":"family 9","name":"Other CPU","numa_nodes":1,"peak_gflops":{},"performance_cores":0,"physical_cores":8,"slice":"","vendor":"Sample"}');
INSERT INTO public.jobs VALUES ('2d5c4b98c7528a9d60c3da183e8ccf82', '187e2689eba017d941e3c135bdeed3ee', 'c0995b673063ea94f6ac98b8ba3b1c25', 'space', 3, '2026-12-01 01:49:59.459188+00');
INSERT INTO public.measurements VALUES ('0673651921e22d4db34dfaef7681d512', '2d5c4b98c7528a9d60c3da183e8ccf82', '187e2689eba017d941e3c135bdeed3ee', 'c0995b673063ea94f6ac98b8ba3b1c25', '8ae2c167afbfb557f7aba30734ace981', '8b4dc4e4b122adf59428bc024f749858', 'r1', 'final', 'TIMEOUT', 'took ''too'' long', NULL, NULL, NULL, NULL, NULL, NULL, '[]', '[]', 0, 0, 0, false, '', 0, 'measured', '2026-01-31 09:30:00+00');
INSERT INTO public.measurements VALUES ('97a8b4941e4b99123e31091ca990f418', '2d5c4b98c7528a9d60c3da183e8ccf82', '187e2689eba017d941e3c135bdeed3ee', 'c0995b673063ea94f6ac98b8ba3b1c25', '82e50ddb5637142593b8b7930d50f388', '8b4dc4e4b122adf59428bc024f749858', 'r1', 'final', 'OK', '', 200, 100, 0.5, 0.5, 0.5, 1e-07, '[200,210,190]', '[100,105,95]', 0, 0, 0, false, 'job-1', 0, 'measured', '2026-01-31 09:30:01.5+00');
INSERT INTO public.measurements VALUES ('eaa3b701de829b9a14ed49931f3c1d8a', '2d5c4b98c7528a9d60c3da183e8ccf82', '187e2689eba017d941e3c135bdeed3ee', 'c0995b673063ea94f6ac98b8ba3b1c25', 'a91ad164e41e5415bd9ab2b20b18ae5c', '8b4dc4e4b122adf59428bc024f749858', 'r1', 'final', 'OK', '', 100.5, 201, 2, 2, 2, 1e-07, '[100,101,99,102]', '[200,202,198,204]', 0, 0, 0, false, 'job-1', 0, 'measured', '2026-01-31 09:30:00+00');
INSERT INTO public.measurements VALUES ('fe086fd8aa9956c7e994b8d7314b640b', '7fff3caf1f4477127977e884d7468ec8', 'faf1107891ecc2a652f9fcbd1809b101', 'c0995b673063ea94f6ac98b8ba3b1c25', 'a91ad164e41e5415bd9ab2b20b18ae5c', '8b4dc4e4b122adf59428bc024f749858', 'r1', 'screen', 'OK', '', 100.5, 201, 2, NULL, NULL, NULL, '[100,101,99,102]', '[200,202,198,204]', 0, 0, 1099511627776, false, 'job-1', 0, 'measured', '2026-01-31 09:30:02+00');
INSERT INTO public.wishes VALUES ('b39185045cb677ca54ac9b42b9172d17', '', 'gemm m=3 n=2 k=1 dtype=f32', 2, 1.5, '2026-12-01 01:49:59.463239+00', '2026-12-01 01:49:59.463239+00', '', NULL, NULL);
INSERT INTO public.workloads VALUES ('2d5c4b98c7528a9d60c3da183e8ccf82', 'linear', 'linear m=1 n=4096 k=1024 dtype=f32', '{"dtype":"f32","k":1024,"m":1,"n":4096}', 'f32', 8388608, 16797696, 1.5497207641601562e-05, '846fe62d983dbd34498e272e8379447e');
INSERT INTO public.workloads VALUES ('7fff3caf1f4477127977e884d7468ec8', 'gemm', 'gemm m=320 n=2560 k=3072 batch=8 dtype=f32 b_layout=expanded', '{"b_layout":"expanded","batch":8,"dtype":"f32","k":3072,"m":320,"n":2560}', 'f32', 40265318400, 309329920, 2.6667416497327838e-05, '846fe62d983dbd34498e272e8379447e');
ALTER TABLE ONLY public.autotune_version
    ADD CONSTRAINT autotune_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.benchmark_specs
    ADD CONSTRAINT benchmark_specs_pkey PRIMARY KEY (key);
ALTER TABLE ONLY public.best
    ADD CONSTRAINT best_pkey PRIMARY KEY (workload_key, hardware_key, environment_key, config_key);
ALTER TABLE ONLY public.configs
    ADD CONSTRAINT configs_pkey PRIMARY KEY (key);
ALTER TABLE ONLY public.environments
    ADD CONSTRAINT environments_pkey PRIMARY KEY (key);
ALTER TABLE ONLY public.hardware
    ADD CONSTRAINT hardware_pkey PRIMARY KEY (key);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (workload_key, hardware_key, environment_key, space_key);
ALTER TABLE ONLY public.measurements
    ADD CONSTRAINT measurements_pkey PRIMARY KEY (uid);
ALTER TABLE ONLY public.wishes
    ADD CONSTRAINT wishes_pkey PRIMARY KEY (workload_key, hardware_key);
ALTER TABLE ONLY public.workloads
    ADD CONSTRAINT workloads_pkey PRIMARY KEY (key);
CREATE INDEX measurements_by_time ON public.measurements USING btree (measured_at, uid);
CREATE INDEX measurements_fastest ON public.measurements USING btree (workload_key, hardware_key, environment_key, median_ns) WHERE (status = 'OK'::text);
CREATE INDEX measurements_identity ON public.measurements USING btree (workload_key, hardware_key, environment_key, config_key);
